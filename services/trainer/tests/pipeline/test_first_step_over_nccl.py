"""The first step of a pipeline over NCCL, in which hosts may wait for an idle device, and aborts;
see ``nccl_devices``."""

from __future__ import annotations

import random

import pytest
from headway.trainer.comm.interface import Aborted

from services.trainer.tests.pipeline.nccl_devices import carry_out, stranded_by_aborts
from services.trainer.tests.pipeline.nccl_late import LATE, step_of
from services.trainer.tests.pipeline.nccl_model import (
    SHAPES,
    FakeChunk,
    Trace,
    by_pair,
    lowered,
    pass_of,
)

TRAINING = [(n, pp, vp) for n, pp, vp in SHAPES if n != "forward-only" and pp != 3 and vp < 3]


@pytest.mark.parametrize(("name", "pp", "vp"), TRAINING)
@pytest.mark.parametrize("overlap", [True, False])
def test_a_rehearsed_step_ends_whatever_waits_for_an_idle_device_and_so_does_each_abort(
    name: str, pp: int, vp: int, overlap: bool
) -> None:
    for late in [{kind} for kind in LATE] + [set(LATE)]:
        traces = step_of(name, pp, vp, late, overlap=overlap, rehearsed=True)
        assert carry_out(traces) == 0, late
        assert not stranded_by_aborts(traces), late


@pytest.mark.parametrize(("name", "pp", "vp"), TRAINING)
@pytest.mark.parametrize("late", ["forward", "backward", "lock", "grow", "free"])
def test_a_step_that_was_not_rehearsed_hangs_behind_posted_receives(
    name: str, pp: int, vp: int, late: str
) -> None:
    """As on GPUs: the call waits for a receive that waits for what comes after the call."""
    left = carry_out(step_of(name, pp, vp, {late}, overlap=True, rehearsed=False))
    # with GPipe a rank has taken all its messages of one direction before it posts the other's
    is_safe = name == "gpipe" and late in ("backward", "free")
    assert (left > 0) is not is_safe
    assert carry_out(step_of(name, pp, vp, {late}, overlap=False, rehearsed=False)) == 0


@pytest.mark.parametrize(("name", "pp", "vp"), [shape for shape in TRAINING if shape[1] < 8])
@pytest.mark.parametrize("overlap", [True, False])
def test_an_abort_may_leave_ranks_that_were_not_rehearsed_in_a_call(
    name: str, pp: int, vp: int, overlap: bool
) -> None:
    """Also without overlap, where the step itself ends: the peer leaves before its message came."""
    for late in ("forward", "backward", *(("lock", "grow", "free") if overlap else ())):
        traces = step_of(name, pp, vp, {late}, overlap=overlap, rehearsed=False)
        assert stranded_by_aborts(traces), late


def hosts_part(name: str, pp: int, vp: int, rank: int, *, overlap: bool, after: int = -1) -> Trace:
    """What one rank has done when its step ended, or was aborted after an event."""
    schedule, trace = lowered(name, pp, vp, groups=1), Trace(abort_after=after)
    chunks = [
        FakeChunk(stage, schedule.num_stages) for stage in schedule.stage_map.stages_of(rank, vp)
    ]
    pipe = by_pair(trace, rank, schedule)
    try:
        pass_of(schedule, rank, chunks, pipe, trace, overlap=overlap).run()
    except Aborted:
        assert trace.channels.aborted
    return trace


@pytest.mark.parametrize(("name", "pp", "vp"), TRAINING)
@pytest.mark.parametrize("overlap", [True, False])
def test_a_host_issues_and_awaits_nothing_once_it_is_aborted(
    name: str, pp: int, vp: int, overlap: bool
) -> None:
    """After each thing that it does, or with eight stages after some drawn at random. It may still
    begin the computation that it has waited for, which waits for nobody."""
    drawn = random.Random(f"{name} {pp} {vp} {overlap}")
    for rank in range(pp):
        total = hosts_part(name, pp, vp, rank, overlap=overlap).num_events
        points = range(1, total + 1)
        for after in points if pp < 8 else sorted(drawn.sample(points, 12)):
            trace = hosts_part(name, pp, vp, rank, overlap=overlap, after=after)
            assert trace.num_events <= after + 1
