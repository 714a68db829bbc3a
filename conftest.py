"""What holds for the tests of every part."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# What other programs of this machine do to its kernel's log is no finding of a test's run.
os.environ.setdefault("HEADWAY_KMSG", "/nonexistent/kernel.log")

# On a busy machine an example takes ten times as long: how long one takes proves nothing.
settings.register_profile("headway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headway")
