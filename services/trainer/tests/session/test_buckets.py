"""Buckets of data parallelism, chunks or layers of a chunk: in the list and in the flight ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from headway.trainer.model.buckets import cut
from headway.trainer.session.hooks import StepHooks
from headway.trainer.session.session import Session
from headway.trainer.state.params import ParamSpec
from hypothesis import given
from hypothesis import strategies as st


def config_of(**parallel: object) -> RunConfig:
    table = {"model": {"layers": 6}, "parallel": parallel, "launch": {}, "train": {}}
    world = int(str(parallel.get("dp", 1))) * int(str(parallel.get("pp", 1)))
    table["launch"] = {"ranks_per_node": world}
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


def test_a_stage_with_replicas_has_four_buckets_by_default_and_none_without_a_layer() -> None:
    def buckets(**parallel: object) -> int:
        return config_of(pp=2, **parallel).parallel.num_buckets

    assert (buckets(dp=2), buckets(dp=1), buckets(dp=2, buckets=3)) == (4, 1, 3)
    assert buckets(dp=2, vp=3, schedule="interleaved") == 1
    with pytest.raises(ConfigError, match=r"parallel.buckets=0"):
        buckets(dp=2, buckets=0)


@given(blocks=st.integers(0, 40), wanted=st.integers(1, 12))
def test_buckets_are_whole_layers_and_share_them(blocks: int, wanted: int) -> None:
    places = {place: spec(f"layers.{place}.weight") for place in range(blocks)}
    ends = {spec("embedding.weight"): 0, spec("head.weight"): max(0, blocks - 1)}
    found = cut({one: place for place, one in places.items()} | ends, blocks, wanted)
    assert len(found) == max(1, min(blocks, wanted))
    assert [place for bucket in found for place in bucket.blocks] == list(range(blocks))
    sizes = [len(bucket.blocks) for bucket in found]
    assert max(sizes) - min(sizes) <= 1
    for bucket in found:
        assert {places[place] for place in bucket.blocks} <= set(bucket.params)
    assert {spec("embedding.weight")} <= set(found[0].params)
    assert {spec("head.weight")} <= set(found[-1].params)


def spec(name: str) -> ParamSpec:
    return ParamSpec(name, (4,), None, 0, 1, False)


def records_of(tmp_path: Path, **parallel: object) -> list[Any]:
    """The finished records of the second step of a single rank."""
    settings = small_run("fp32", world_size=1)
    settings["parallel"] = parallel
    run = from_dict(RunConfig, settings)
    flight = FlightWriter.create(tmp_path / "flight.bin", 0)
    session = Session(run, 0, data_factory=synthetic(run, 0), recorder=flight)
    session.join(Groups.alone(1))
    session.load("init")
    session.run(StepHooks(), 2)
    session.leave()
    session.close()
    rows = FlightReader(tmp_path / "flight.bin").snapshot()
    return [row for row in rows if row["step"] == 1 and row["end_ns"]]


@pytest.mark.parametrize(
    ("schedule", "kind"), [("1f1b", Kind.BACKWARD), ("zb-h1", Kind.BACKWARD_WEIGHT)]
)
def test_buckets_are_reduced_within_the_last_backward_and_gathered_before_their_layers(
    tmp_path: Path, schedule: str, kind: Kind
) -> None:
    records = records_of(tmp_path, buckets=3, schedule=schedule)
    reduces = [r for r in records if r["kind"] == Kind.REDUCE_SCATTER and not r["flags"] & WAITING]
    last = max((r for r in records if r["kind"] == kind), key=lambda r: r["start_ns"])
    assert len(reduces) == 3 and {int(r["chunk"]) for r in reduces} == {0}
    within = [last["start_ns"] < r["start_ns"] < r["end_ns"] < last["end_ns"] for r in reduces]
    assert within == [True, True, False]
    waits = [r for r in records if r["kind"] == Kind.ALL_GATHER and r["flags"] & WAITING]
    first = min((r for r in records if r["kind"] == Kind.FORWARD), key=lambda r: r["start_ns"])
    assert [bool(r["start_ns"] > first["start_ns"]) for r in waits] == [False, True, True]


def test_the_flight_ring_shows_reductions_under_the_backward(tmp_path: Path) -> None:
    """What the list promises is what a rank does: issued in order, and waited for at the end."""
    records = records_of(tmp_path, vp=2)
    issued = [r for r in records if r["kind"] == Kind.REDUCE_SCATTER and not r["flags"] & WAITING]
    backward = [r for r in records if r["kind"] == Kind.BACKWARD]
    waited = [r for r in records if r["kind"] == Kind.REDUCE_SCATTER and r["flags"] & WAITING]
    assert [r["chunk"] for r in issued] == [1, 0]
    last_of_chunk_0 = max(r["start_ns"] for r in backward if r["chunk"] == 0)
    assert issued[0]["end_ns"] < last_of_chunk_0 < waited[0]["start_ns"]
