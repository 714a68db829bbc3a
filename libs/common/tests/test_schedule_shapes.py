"""Schedules against their papers' figures, and one broken schedule per rule
that ``validate`` holds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest
from headway.common.errors import ConfigError
from headway.common.plan import schedule as package
from headway.common.plan.schedule import (
    Action,
    Kind,
    Schedule,
    forward_only,
    generate,
    interleaved_1f1b,
    lower,
    unit_timeline,
    validate,
)
from headway.common.plan.schedule.actions import COMPUTE, RECEIVES, SENDS
from hypothesis import given, settings
from hypothesis import strategies as st

SHAPES = [
    ("gpipe", 3, 1, 4),
    ("1f1b", 3, 1, 4),
    ("1f1b", 1, 1, 3),
    ("zb-h1", 4, 1, 5),
    ("zb-v", 2, 2, 4),
    ("zb-v", 3, 2, 2),
    ("interleaved", 2, 2, 4),
    ("interleaved", 1, 2, 3),
    ("forward-only", 2, 2, 3),
    ("forward-only", 1, 1, 2),
]


def make(name: str, pp: int, vp: int, m: int) -> Schedule:
    if name == "forward-only":
        return forward_only(pp=pp, vp=vp, num_micro_batches=m)
    return generate(name, pp=pp, vp=vp, num_micro_batches=m)


def chunks(name: str, vp: int) -> int:
    """``vp`` for the schedules that take any, else what they need."""
    return vp if name in ("interleaved", "forward-only") else 1 + (name == "zb-v")


def changed(schedule: Schedule, rank: int, order: list[Action]) -> Schedule:
    ranks = list(schedule.ranks)
    ranks[rank] = tuple(order)
    return dataclasses.replace(schedule, ranks=tuple(ranks))


def makespan(schedule: Schedule) -> float:
    return max(span.end for span in unit_timeline(schedule))


@pytest.mark.parametrize("shape", SHAPES)
def test_dropping_or_doubling_any_single_action_is_refused(
    shape: tuple[str, int, int, int],
) -> None:
    lowered = lower(make(*shape))
    validate(lowered)
    for rank, order in enumerate(lowered.ranks):
        for i in range(len(order)):
            for broken in (order[:i] + order[i + 1 :], order[:i] + order[i : i + 1] + order[i:]):
                with pytest.raises(ConfigError, match=f"rank {rank} "):
                    validate(changed(lowered, rank, list(broken)))


@pytest.mark.parametrize("shape", SHAPES)
def test_exchanging_any_two_micro_batches_of_one_kind_and_chunk_is_refused(
    shape: tuple[str, int, int, int],
) -> None:
    lowered = lower(make(*shape))
    for rank, order in enumerate(lowered.ranks):
        for i, j in itertools.combinations(range(len(order)), 2):
            a, b = order[i], order[j]
            if a.kind is b.kind and a.chunk == b.chunk:
                broken = list(order)
                broken[i], broken[j] = b, a
                with pytest.raises(ConfigError):
                    validate(changed(lowered, rank, broken))


@settings(max_examples=150)
@given(
    st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved"]),
    st.integers(2, 8),
    st.integers(1, 4),
    st.integers(1, 4),
    st.data(),
)
def test_a_send_exchanged_with_a_receive_of_the_same_peer_in_one_gap_is_refused(
    name: str, pp: int, vp: int, groups: int, data: st.DataObject
) -> None:
    lowered = lower(generate(name, pp=pp, vp=chunks(name, vp), num_micro_batches=groups * pp))
    found = [
        (rank, i)
        for rank, order in enumerate(lowered.ranks)
        for i, (a, b) in enumerate(itertools.pairwise(order))
        if a.peer == b.peer
        and {a.kind in SENDS, b.kind in SENDS} == {True, False}
        and {a.kind in RECEIVES, b.kind in RECEIVES} == {True, False}
    ]
    if not found:
        return
    rank, i = data.draw(st.sampled_from(found))
    order = list(lowered.ranks[rank])
    order[i], order[i + 1] = order[i + 1], order[i]
    with pytest.raises(ConfigError):
        validate(changed(lowered, rank, order))


def test_with_all_read_every_rank_takes_data_once_before_it_computes() -> None:
    computed = generate("interleaved", pp=4, vp=2, num_micro_batches=8)
    lowered = lower(computed, all_read=True)
    validate(lowered)
    assert all([a.kind for a in order].count(Kind.DATA) == 1 for order in lowered.ranks)
    with pytest.raises(ConfigError, match="rank 1 has 0 DATA instead of 1"):
        validate(dataclasses.replace(lower(computed), all_read=True))


def _move(order: list[Action], kind: Kind, by: int) -> list[Action]:
    place = next(i for i, a in enumerate(order) if a.kind is kind)
    order.insert(place + by, order.pop(place))
    return order


@pytest.mark.parametrize(
    ("rank", "change", "words"),
    [
        (0, lambda order: _move(order, Kind.DATA, 1), "computes before DATA"),
        (0, lambda order: _move(order, Kind.SEND_FORWARD, 1), "does not follow FORWARD"),
        (1, lambda order: _move(order, Kind.SEND_BACKWARD, 1), "directly|does not follow"),
        (0, lambda order: _move(order, Kind.NORM, 1), "does not end with NORM"),
        (
            0,
            lambda order: _move(order, Kind.REDUCE_SCATTER, -1),
            "before the chunk's last weight gradient",
        ),
        (0, lambda order: [Action(Kind.EVAL), *order], "EVAL where it does not belong"),
    ],
)
def test_a_misplaced_action_is_refused(
    rank: int, change: Callable[[list[Action]], list[Action]], words: str
) -> None:
    lowered = lower(generate("zb-h1", pp=2, num_micro_batches=3))
    with pytest.raises(ConfigError, match=words):
        validate(changed(lowered, rank, change(list(lowered.ranks[rank]))))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
def test_a_reduction_before_the_send_that_the_stage_before_waits_for_is_refused(name: str) -> None:
    lowered = lower(generate(name, pp=2, vp=2 if name == "interleaved" else 1, num_micro_batches=4))
    for rank, order in enumerate(lowered.ranks):
        for place, action in enumerate(order):
            if action.kind is not Kind.REDUCE_SCATTER or order[place - 1].kind not in SENDS:
                continue
            swapped = [*order[: place - 1], action, order[place - 1], *order[place + 1 :]]
            with pytest.raises(ConfigError, match=f"rank {rank} SEND_BACKWARD.* does not follow"):
                validate(changed(lowered, rank, swapped))
            break
        else:
            assert rank == 0 and name != "interleaved", "a stage with none before it sends nothing"


@settings(max_examples=150)
@given(
    st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved", "forward-only"]),
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_nothing_but_receives_stands_between_a_result_and_its_send(
    name: str, pp: int, vp: int, groups: int
) -> None:
    schedule = lower(make(name, pp, chunks(name, vp), groups * pp))
    for order in schedule.ranks:
        for index, action in enumerate(order):
            if action.kind in SENDS:
                before = next(a for a in reversed(order[:index]) if a.kind not in RECEIVES)
                assert before.kind in COMPUTE
                assert (before.chunk, before.micro_batch) == (action.chunk, action.micro_batch)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_lists_than_pp_is_refused(count: int) -> None:
    lowered = lower(generate("1f1b", pp=2, num_micro_batches=2))
    lists = (lowered.ranks * 2)[:count]
    with pytest.raises(ConfigError, match=f"there are {count}"):
        validate(dataclasses.replace(lowered, ranks=lists))


@settings(max_examples=100)
@given(st.integers(1, 8), st.integers(1, 32))
def test_a_split_input_gradient_is_sent_before_anything_else(pp: int, m: int) -> None:
    for rank, order in enumerate(lower(generate("zb-h1", pp=pp, num_micro_batches=m)).ranks):
        for action, following in itertools.pairwise(order):
            if action.kind is Kind.BACKWARD_INPUT and rank > 0:
                assert following == Action(Kind.SEND_BACKWARD, 0, action.micro_batch, rank - 1)


@settings(max_examples=100)
@given(
    st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved", "forward-only"]),
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_both_ends_of_a_lane_list_its_messages_in_the_same_order(
    name: str, pp: int, vp: int, groups: int
) -> None:
    schedule = lower(make(name, pp, chunks(name, vp), groups * pp))
    stage = schedule.stage_map.stage
    for sender, receiver in itertools.permutations(range(pp), 2):
        for send, receive, step in (
            (Kind.SEND_FORWARD, Kind.RECV_FORWARD, 1),
            (Kind.SEND_BACKWARD, Kind.RECV_BACKWARD, -1),
        ):
            sent = [
                (stage(sender, a.chunk) + step, a.micro_batch)
                for a in schedule.ranks[sender]
                if a.kind is send and a.peer == receiver
            ]
            received = [
                (stage(receiver, a.chunk), a.micro_batch)
                for a in schedule.ranks[receiver]
                if a.kind is receive and a.peer == sender
            ]
            assert sent == received


@pytest.mark.parametrize(("pp", "vp"), [(1, 1), (1, 3), (3, 1), (2, 2), (3, 3)])
def test_every_chunk_is_gathered_before_its_first_forward_and_one_chunk_ahead(
    pp: int, vp: int
) -> None:
    lowered = lower(interleaved_1f1b(pp=pp, vp=vp, num_micro_batches=2 * pp))
    for order in lowered.ranks:
        gathered = [i for i, a in enumerate(order) if a.kind is Kind.ALL_GATHER]
        first = [
            next(i for i, a in enumerate(order) if a.kind in COMPUTE and a.chunk == c)
            for c in range(vp)
        ]
        assert [order[i].chunk for i in gathered] == list(range(vp))
        assert all(gathered[c] < first[max(c - 1, 0)] for c in range(vp))


@pytest.mark.parametrize("m", [4, 8, 24])
@pytest.mark.parametrize(("pp", "vp"), [(2, 1), (4, 1), (2, 2), (4, 2), (4, 4)])
def test_interleaving_divides_the_bubble_by_the_number_of_chunks(pp: int, vp: int, m: int) -> None:
    ideal = 3 * m * vp
    # in chunk units
    assert makespan(interleaved_1f1b(pp=pp, vp=vp, num_micro_batches=m)) - ideal == 3 * (pp - 1)


@pytest.mark.parametrize("m", [8, 9, 32])
@pytest.mark.parametrize("pp", [1, 2, 4, 8])
def test_zero_bubble_leaves_a_third_of_the_bubble(pp: int, m: int) -> None:
    """ZB-H1's bubble is (p - 1)(T_F + T_B - T_W): arXiv 2401.10241, table 2."""
    assert makespan(generate("zb-h1", pp=pp, num_micro_batches=m)) - 3 * m == pp - 1


def test_warm_up_counts_are_those_of_megatron() -> None:
    def warmups(schedule: Schedule) -> list[int]:
        kinds = [[a.kind for a in order] for order in schedule.ranks]
        return [order.index(Kind.BACKWARD) for order in kinds]

    # The forward of the first 1F1B pair comes on top of the warm-up, unless the
    # warm-up is everything.
    assert warmups(generate("1f1b", pp=4, num_micro_batches=8)) == [4, 3, 2, 1]
    assert warmups(interleaved_1f1b(pp=4, vp=2, num_micro_batches=8)) == [11, 9, 7, 5]
    assert warmups(interleaved_1f1b(pp=4, vp=2, num_micro_batches=4)) == [8, 8, 7, 5]
    assert warmups(generate("gpipe", pp=2, num_micro_batches=3)) == [3, 3]


def test_in_flight_counts_are_those_of_the_papers() -> None:
    peaks = {
        name: validate(lower(generate(name, pp=4, num_micro_batches=8))).peak_in_flight
        for name in ("gpipe", "1f1b", "zb-h1")
    }
    assert peaks == {"gpipe": (8, 8, 8, 8), "1f1b": (4, 3, 2, 1), "zb-h1": (4, 4, 4, 4)}


@pytest.mark.parametrize(
    "call",
    [
        lambda: interleaved_1f1b(pp=0, vp=1, num_micro_batches=2),
        lambda: forward_only(pp=0, num_micro_batches=2),
        lambda: forward_only(pp=1, vp=0, num_micro_batches=2),
        lambda: generate("gpipe", pp=1, num_micro_batches=0),
    ],
)
def test_a_count_below_one_is_refused_by_every_generator(call: Callable[[], Schedule]) -> None:
    with pytest.raises(ConfigError, match="=0 is below 1"):
        call()


def test_an_order_that_can_never_run_is_refused_by_lowering() -> None:
    order = (Action(Kind.BACKWARD, 0, 0), Action(Kind.FORWARD, 0, 0))
    with pytest.raises(ConfigError, match=r"rank 0 waits forever at BACKWARD\[0:0\]"):
        lower(Schedule("mine", 1, 1, 1, False, (order,)))


def test_every_public_name_exists() -> None:
    assert package.__all__ == sorted(package.__all__)
    for name in package.__all__:
        assert callable(getattr(package, name)), name


@pytest.mark.parametrize("pp", [2, 5])
def test_without_backward_messages_a_forward_result_too_is_sent_before_anything_else(
    pp: int,
) -> None:
    for rank, order in enumerate(lower(forward_only(pp=pp, num_micro_batches=6)).ranks[:-1]):
        for action, following in itertools.pairwise(order):
            if action.kind is Kind.FORWARD:
                assert following == Action(Kind.SEND_FORWARD, 0, action.micro_batch, rank + 1)
