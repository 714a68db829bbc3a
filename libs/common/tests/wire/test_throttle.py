"""Complaints in a flood."""

from __future__ import annotations

import pytest
from headway.common.wire import throttle
from headway.common.wire.throttle import Throttle


def test_the_first_of_each_kind_passes_then_one_a_period_with_the_number_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(throttle.time, "monotonic", lambda: now[0])
    complaints = Throttle(period_s=10.0)
    assert complaints.admit("a") == 0
    assert [complaints.admit("a") for _ in range(3)] == [None] * 3
    assert complaints.admit("b") == 0
    now[0] += 10.0
    assert complaints.admit("a") == 3
    now[0] += 10.0
    assert complaints.admit("a") == 0
