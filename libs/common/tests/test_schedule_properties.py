"""Every schedule, for every shape: complete, in order, free of deadlock; and a
broken one is refused."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from headway.common.errors import ConfigError
from headway.common.plan.schedule.actions import SENDS, Action, Kind, Schedule
from headway.common.plan.schedule.generate import bubble_fraction, forward_only, generate
from headway.common.plan.schedule.lower import lower
from headway.common.plan.schedule.timeline import unit_timeline
from headway.common.plan.schedule.validate import validate
from hypothesis import given, settings
from hypothesis import strategies as st

NAMES = ("gpipe", "1f1b", "zb-h1")


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    pp = draw(st.integers(1, 8))
    name = draw(st.sampled_from([*NAMES, "zb-v", "interleaved", "forward-only"]))
    vp = (
        draw(st.integers(1, 4)) if name in ("interleaved", "forward-only") else 1 + (name == "zb-v")
    )
    m = draw(st.integers(1, 32 // pp if name == "interleaved" else 32))
    if name == "forward-only":
        is_v = vp == 2 and draw(st.booleans())
        return forward_only(pp=pp, vp=vp, num_micro_batches=m, is_v=is_v)
    return generate(name, pp=pp, vp=vp, num_micro_batches=m * pp if name == "interleaved" else m)


@settings(max_examples=300)
@given(schedules())
def test_every_lowered_schedule_is_complete_and_free_of_deadlock(schedule: Schedule) -> None:
    proof = validate(lower(schedule))
    assert len(proof.peak_in_flight) == schedule.pp


@settings(max_examples=100)
@given(schedules(), st.data())
def test_a_dropped_action_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    lowered = lower(schedule)
    rank = data.draw(st.integers(0, schedule.pp - 1))
    framing = {Kind.DATA, Kind.NORM, Kind.OPTIMIZER, Kind.SNAPSHOT}
    places = [i for i, action in enumerate(lowered.ranks[rank]) if action.kind not in framing]
    place = data.draw(st.sampled_from(places))
    with pytest.raises(ConfigError, match=r"rank \d+"):
        validate(
            _with(lowered, rank, lowered.ranks[rank][:place] + lowered.ranks[rank][place + 1 :])
        )


@settings(max_examples=60)
@given(st.sampled_from(NAMES), st.integers(1, 6), st.integers(2, 12), st.data())
def test_two_swapped_micro_batches_are_refused(
    name: str, pp: int, m: int, data: st.DataObject
) -> None:
    lowered = lower(generate(name, pp=pp, num_micro_batches=m))
    rank = data.draw(st.integers(0, pp - 1))
    order = list(lowered.ranks[rank])
    gradients = [i for i, a in enumerate(order) if a.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)]
    first = data.draw(st.integers(0, len(gradients) - 2))
    i, j = gradients[first], gradients[first + 1]
    order[i], order[j] = order[j], order[i]
    with pytest.raises(ConfigError):
        validate(_with(lowered, rank, tuple(order)))


def test_send_and_receive_in_the_naive_order_deadlock_under_rendezvous_and_are_refused() -> None:
    lowered = lower(generate("1f1b", pp=2, num_micro_batches=4))
    order = list(lowered.ranks[0])
    place = next(
        i
        for i, (a, b) in enumerate(itertools.pairwise(order))
        if {a.kind, b.kind} == {Kind.RECV_BACKWARD, Kind.SEND_FORWARD}
    )
    order[place], order[place + 1] = order[place + 1], order[place]
    with pytest.raises(ConfigError, match="waits forever"):
        validate(_with(lowered, 0, tuple(order)))


def test_a_message_to_the_wrong_rank_is_refused() -> None:
    lowered = lower(generate("1f1b", pp=3, num_micro_batches=3))
    order = [
        dataclasses.replace(a, peer=2) if a.kind in SENDS and a.peer == 1 else a
        for a in lowered.ranks[0]
    ]
    with pytest.raises(ConfigError, match="goes to rank 2"):
        validate(_with(lowered, 0, tuple(order)))


@pytest.mark.parametrize("m", [4, 8, 16])
@pytest.mark.parametrize("pp", [2, 4])
def test_the_bubble_in_unit_time_is_the_published_formula(pp: int, m: int) -> None:
    spans = unit_timeline(generate("1f1b", pp=pp, num_micro_batches=m))
    ideal = 3.0 * m
    assert max(span.end for span in spans) / ideal - 1 == pytest.approx(
        bubble_fraction(pp=pp, num_micro_batches=m)
    )


def test_interleaving_and_zero_bubble_end_sooner_than_1f1b() -> None:
    plain = max(s.end for s in unit_timeline(generate("1f1b", pp=4, num_micro_batches=8)))
    zero = max(s.end for s in unit_timeline(generate("zb-h1", pp=4, num_micro_batches=8)))
    chunks = (
        max(s.end for s in unit_timeline(generate("interleaved", pp=4, vp=2, num_micro_batches=8)))
        / 2
    )
    assert zero < plain
    assert chunks < plain


@settings(max_examples=50)
@given(st.integers(1, 8), st.integers(1, 24))
def test_zero_bubble_holds_no_more_than_the_first_rank_of_1f1b(pp: int, m: int) -> None:
    plain = validate(lower(generate("1f1b", pp=pp, num_micro_batches=m))).peak_in_flight
    zero = validate(lower(generate("zb-h1", pp=pp, num_micro_batches=m))).peak_in_flight
    assert max(zero) <= max(plain)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: generate("1f1b", pp=2, vp=2, num_micro_batches=4), "vp=2"),
        (lambda: generate("zb-v", pp=2, vp=1, num_micro_batches=4), "vp=1"),
        (lambda: generate("interleaved", pp=2, vp=2, num_micro_batches=3), "3 micro-batches"),
        (lambda: generate("2f2b", pp=2, num_micro_batches=3), "2f2b"),
        (lambda: generate("1f1b", pp=0, num_micro_batches=3), "pp=0"),
    ],
)
def test_an_impossible_combination_names_its_values(call: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()  # type: ignore[operator]


def _with(schedule: Schedule, rank: int, order: tuple[Action, ...]) -> Schedule:
    ranks = list(schedule.ranks)
    ranks[rank] = order
    return dataclasses.replace(schedule, ranks=tuple(ranks))
