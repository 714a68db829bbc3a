"""What holds for the tests of every part."""

from __future__ import annotations

import os
import sys

from hypothesis import HealthCheck, settings

# A test's run must not report what other programs write to this machine's kernel log.
os.environ.setdefault("HEADWAY_KMSG", "/nonexistent/kernel.log")

# When it is imported, jsonschema would compile this grammar, of a format that no schema here has:
# 4.5 s of CPU for each process that runs tests.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# On a busy machine an example takes ten times as long: how long one takes proves nothing.
settings.register_profile("headway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headway")
