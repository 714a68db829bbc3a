"""Garbage collections come at planned steps, and Python's own are as before afterwards."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.errors import ConfigError
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.plan.schedule.actions import Kind
from headway.trainer.config import TrainConfig
from headway.trainer.device.recorder import NoRecorder
from headway.trainer.session.planned_gc import PlannedGc


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


class _Cycle:
    def __init__(self) -> None:
        self.me = self


def test_a_cycle_is_freed_at_the_planned_step_and_not_before() -> None:
    with PlannedGc(4, NoRecorder()) as planned:
        assert not gc.isenabled()
        cycle = _Cycle()
        gc.collect(1)  # no longer young
        seen = weakref.ref(cycle)
        del cycle
        for step in (1, 2, 3):
            planned.after(step)
            assert seen() is not None
        planned.after(4)
        assert seen() is None
    assert gc.isenabled()


def test_collection_is_as_before_after_an_abort_and_untouched_without_a_plan() -> None:
    with pytest.raises(RuntimeError), PlannedGc(4, NoRecorder()):
        raise RuntimeError
    assert gc.isenabled()
    with PlannedGc(0, NoRecorder()):
        assert gc.isenabled()
    gc.disable()
    with PlannedGc(4, NoRecorder()):
        pass
    assert not gc.isenabled()


def test_a_negative_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match="gc_every=-1"):
        TrainConfig(gc_every=-1)


def test_full_collections_are_recorded_with_their_times_after_the_step(tmp_path: Path) -> None:
    writer = FlightWriter.create(tmp_path / "f", 0)
    with PlannedGc(2, writer) as planned:
        gc.collect()  # somebody's own
        planned.after(1)
        gc.collect(1)
        planned.after(2)
    gc.collect()
    rows = FlightReader(tmp_path / "f").snapshot()
    assert rows["kind"].tolist() == [Kind.GARBAGE_COLLECTION] * 2
    assert rows["step"].tolist() == [1, 2]
    assert (rows["end_ns"] > rows["start_ns"]).all()
    assert FlightReader(tmp_path / "f").header.progress == 2
