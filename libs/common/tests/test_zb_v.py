"""ZB-V: chunks in a V, no idle time within a rank's passes, and the memory of 1F1B."""

from __future__ import annotations

import pytest
from headway.common.plan.schedule import Kind, forward_only, generate, lower, validate
from headway.common.plan.schedule.actions import COMPUTE, SENDS, Schedule
from headway.common.plan.schedule.timeline import unit_timeline
from headway.common.plan.stage_map import StageMap

SIZES = (1, 2, 3, 4, 7, 8)


def zb_v(pp: int, m: int) -> Schedule:
    return generate("zb-v", pp=pp, vp=2, num_micro_batches=m)


def idle(schedule: Schedule) -> list[float]:
    """What each rank waits between its first pass and its last, in the time of one pass."""
    spans = unit_timeline(schedule)
    found = []
    for rank in range(schedule.pp):
        own = [span for span in spans if span.rank == rank]
        busy = sum(span.end - span.start for span in own)
        found.append(max(span.end for span in own) - min(span.start for span in own) - busy)
    return found


@pytest.mark.parametrize("is_v", [False, True])
@pytest.mark.parametrize("pp", SIZES)
def test_each_stage_has_one_place_and_neighbours_are_one_rank_apart_in_a_v(
    pp: int, is_v: bool
) -> None:
    stages = StageMap(pp, is_v)
    places = [stages.place(stage) for stage in range(2 * pp)]
    assert sorted(places) == [(rank, chunk) for rank in range(pp) for chunk in range(2)]
    assert [stages.stage(*place) for place in places] == list(range(2 * pp))
    own = [stage for rank in range(pp) for stage in stages.stages_of(rank, vp=2)]
    assert sorted(own) == list(range(2 * pp))
    assert stages.ends == (places[0][0], places[-1][0])
    if is_v:
        assert [rank for rank, _ in places] == [*range(pp), *reversed(range(pp))]


@pytest.mark.parametrize("more", [0, 1, 2, 9])
@pytest.mark.parametrize("pp", SIZES)
def test_no_rank_idles_from_its_first_pass_to_its_last(pp: int, more: int) -> None:
    """With 2 pp - 1 micro-batches or more. The last rank begins pp - 1 passes late, which no order
    can avoid, and all of them work for 6 passes per micro-batch."""
    m = 2 * pp - 1 + more
    schedule = zb_v(pp, m)
    assert idle(schedule) == [0.0] * pp
    assert max(span.end for span in unit_timeline(schedule)) == 6 * m + pp - 1


@pytest.mark.parametrize("pp", SIZES[1:])
def test_with_one_micro_batch_less_some_rank_idles(pp: int) -> None:
    assert max(idle(zb_v(pp, 2 * pp - 2))) > 0


@pytest.mark.parametrize("pp", SIZES)
def test_no_rank_keeps_more_than_the_first_rank_of_1f1b(pp: int) -> None:
    """A chunk is half of a stage, so two pairs of chunk and micro-batch are one of 1F1B's."""
    for m in (1, pp, 2 * pp - 1, 4 * pp):
        peaks = validate(lower(zb_v(pp, m))).peak_in_flight
        plain = generate("1f1b", pp=pp, num_micro_batches=m)
        assert max(peaks) <= 2 * max(validate(lower(plain)).peak_in_flight)
    assert set(peaks) == {2 * pp}, "all ranks alike, unlike 1F1B's"


@pytest.mark.parametrize("pp", SIZES)
@pytest.mark.parametrize("m", [1, 2, 5])
def test_a_tied_table_has_all_its_gradients_when_the_first_chunk_is_reduced(
    pp: int, m: int
) -> None:
    """Embedding and head are on rank 0 and share the parameter, which is the first chunk's."""
    order = lower(zb_v(pp, m)).ranks[0]
    reduced = next(i for i, a in enumerate(order) if (a.kind, a.chunk) == (Kind.REDUCE_SCATTER, 0))
    assert all(action.kind not in COMPUTE for action in order[reduced:])


@pytest.mark.parametrize("pp", SIZES[1:])
def test_the_last_rank_hands_over_to_itself_and_the_first_reads_all_data(pp: int) -> None:
    lowered = lower(zb_v(pp, 3))
    sends = [a for a in lowered.ranks[-1] if a.kind in SENDS]
    assert {(a.kind, a.chunk) for a in sends} == {(Kind.SEND_FORWARD, 1), (Kind.SEND_BACKWARD, 0)}
    assert [lowered.reads(rank) for rank in range(pp)] == [True] + [False] * (pp - 1)


@pytest.mark.parametrize("pp", SIZES)
def test_a_validation_pass_in_a_v_takes_no_longer_than_the_way_there_and_back(pp: int) -> None:
    m = 3 * pp
    schedule = forward_only(pp=pp, vp=2, num_micro_batches=m, is_v=True)
    validate(lower(schedule))
    assert idle(schedule)[-1] == 0.0
    assert max(span.end for span in unit_timeline(schedule)) == 2 * m + 2 * (pp - 1)
