"""Data parallelism without a pipeline: chunks as buckets, in the list and in the flight ring."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.config import from_dict
from headway.common.errors import ConfigError
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import WAITING
from headway.common.plan.schedule import generate, lower
from headway.common.plan.schedule.actions import Action, Kind
from headway.common.plan.stages import stage_layers
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.session.hooks import StepHooks
from headway.trainer.session.session import Session
from hypothesis import given
from hypothesis import strategies as st


def config_of(**parallel: object) -> RunConfig:
    table = {"model": {"layers": 6}, "parallel": parallel, "launch": {}, "train": {}}
    table["launch"] = {"ranks_per_node": int(str(parallel.get("dp", 1)))}
    return from_dict(RunConfig, table)


def test_a_run_with_replicas_and_no_pipeline_has_four_chunks_by_default() -> None:
    assert config_of(dp=2).parallel.num_chunks == 4
    assert config_of(dp=1).parallel.num_chunks == 1
    assert config_of(dp=2, vp=2).parallel.num_chunks == 2
    assert config_of(dp=2, schedule="gpipe").parallel.num_chunks == 1
    with pytest.raises(ConfigError, match=r"parallel.vp=7 chunks of model.layers=6"):
        config_of(dp=2, vp=7)


@given(layers=st.integers(1, 60), stages=st.integers(1, 12))
def test_chunks_share_the_layers_and_differ_by_one_at_most(layers: int, stages: int) -> None:
    found = stage_layers(layers, stages)
    assert [layer for chunk in found for layer in chunk] == list(range(layers))
    assert len(found) == stages
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_each_reduction_but_the_last_has_a_backward_after_it_and_each_gather_a_forward() -> None:
    actions = lower(generate("1f1b", pp=1, vp=4, num_micro_batches=3)).ranks[0]
    places = {(a.kind, a.chunk, a.micro_batch): at for at, a in enumerate(actions)}
    for chunk in (1, 2, 3):
        reduce = places[Kind.REDUCE_SCATTER, chunk, -1]
        assert reduce == places[Kind.BACKWARD, chunk, 2] + 1
        assert reduce < places[Kind.BACKWARD, chunk - 1, 2]
        assert places[Kind.ALL_GATHER, chunk, -1] < places[Kind.FORWARD, chunk - 1, 0]
    assert actions.count(Action(Kind.REDUCE_SCATTER, 0)) == 1


def test_the_flight_ring_shows_reductions_under_the_backward(tmp_path: Path) -> None:
    """What the list promises is what a rank does: issued in order, and waited for at the end."""
    settings = small_run("fp32", world_size=1)
    settings["parallel"] = {"vp": 2}
    run = from_dict(RunConfig, settings)
    flight = FlightWriter.create(tmp_path / "flight.bin", 0)
    session = Session(run, 0, data_factory=synthetic(run, 0), recorder=flight)
    session.join(Groups.alone(1))
    session.load("init")
    session.run(StepHooks(), 2)
    session.leave()
    session.close()
    rows = FlightReader(tmp_path / "flight.bin").snapshot()
    records = [row for row in rows if row["step"] == 1 and row["end_ns"]]
    issued = [r for r in records if r["kind"] == Kind.REDUCE_SCATTER and not r["flags"] & WAITING]
    backward = [r for r in records if r["kind"] == Kind.BACKWARD]
    waited = [r for r in records if r["kind"] == Kind.REDUCE_SCATTER and r["flags"] & WAITING]
    assert [r["chunk"] for r in issued] == [1, 0]
    last_of_chunk_0 = max(r["start_ns"] for r in backward if r["chunk"] == 0)
    assert issued[0]["end_ns"] < last_of_chunk_0 < waited[0]["start_ns"]
