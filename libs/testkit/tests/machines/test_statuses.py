"""The process that reports where runs stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.testkit.bed import Bed
from headway.testkit.machines.statuses import Statuses


def test_a_process_that_ended_is_started_again(tmp_path: Path) -> None:
    if reason := Bed.missing():
        pytest.skip(f"no separate nodes here: {reason}")
    with Bed(tmp_path, nodes=1) as bed, Statuses(bed.node(0), tmp_path / "runs") as statuses:
        assert "no run" in statuses.of("nobody")["detail"]
        first = statuses._process
        assert first is not None
        first.kill()
        first.wait()
        assert statuses.of("nobody") == {
            "phase": "unknown", "detail": "no answer within 60 s, or an early end"}  # fmt: skip
        assert "no run" in statuses.of("nobody")["detail"]
        second = statuses._process
        assert second is not None and second is not first
    assert second.returncode is not None
