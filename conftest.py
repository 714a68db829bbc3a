"""What holds for the tests of every part."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# On a busy machine an example takes ten times as long: how long one takes proves nothing.
settings.register_profile("headway", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headway")
