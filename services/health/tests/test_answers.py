"""A verdict repeats until the driver says what it did, and is given again if that did not help."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import read_line
from headway.common.wire.messages.health import Verdict, VerdictTaken
from headway.health.client import verdicts_of
from headway.health.config import HealthConfig
from headway.health.journal import read_verdicts
from headway.health.reporter import REPEAT_S, Unanswered
from headway.health.responses import response
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, SimulatedNode, beat_times, lockstep, stall_others
from headway.testkit.played.health_bench import Bench, health_bench

CONFIG = HealthConfig()


def verdict(revision: int = 0, *, taken: str = "", is_open: bool = True) -> Verdict:
    return Verdict(
        id="worker:0:1:2:3#1",
        revision=revision,
        kind="crash",
        is_open=is_open,
        run_id=RUN_ID,
        node=0,
        taken=taken,
    )


def test_what_is_open_is_due_once_a_second_until_it_is_answered_or_over() -> None:
    waiting = Unanswered()
    assert waiting.note(verdict(), 10.0)
    assert waiting.due(10.5) == []
    assert waiting.due(10.0 + REPEAT_S) == [verdict()]
    assert waiting.due(10.1 + REPEAT_S) == []
    assert not waiting.note(verdict(1, taken="replaced the worker"), 12.0), "the driver knows that"
    assert waiting.due(100.0) == []
    assert waiting.note(verdict(2), 101.0), "a further revision wants a further answer"
    assert waiting.due(102.0) == [verdict(2)]
    assert waiting.note(verdict(3, is_open=False), 103.0)
    assert waiting.due(200.0) == []


def test_a_new_driver_gets_all_that_is_open_and_only_the_unanswered_again() -> None:
    waiting = Unanswered([verdict(1, taken="replaced the worker")])
    assert waiting.due(1.0) == []
    assert waiting.due(2.0, is_new_driver=True) == [verdict(1, taken="replaced the worker")]
    assert waiting.due(100.0) == []


def hung_nodes(culprit: int = 3) -> list[SimulatedNode]:
    timelines = lockstep(4, 200, lambda _: 0.4)
    stall_others(timelines, culprit, at_s=20.0)
    return [SimulatedNode(index, timelines[2 * index : 2 * index + 2]) for index in range(2)]


def play(
    state: MonitorState,
    nodes: list[SimulatedNode],
    until_s: float,
    start_s: float = 0.0,
    answer: Callable[[Verdict], str] = lambda _: "",
) -> list[Verdict]:
    """What is given to the driver; its answers are given back at once."""
    given: list[Verdict] = []
    for now_s in beat_times(until_s, start_s=start_s):
        new = [one for node in nodes for one in state.on_beat(node.beat(now_s), now_s)]
        new += state.tick(now_s)
        for one in new:
            taken = VerdictTaken(id=one.id, revision=one.revision, taken=answer(one))
            noted = state.on_taken(taken, now_s)
            assert [row.taken for row in noted] == ([taken.taken] if taken.taken else [])
        given += new
    return given


def test_an_answer_is_noted_in_a_revision_of_its_own_and_only_once() -> None:
    state = MonitorState(CONFIG, RUN_ID)
    [opened] = play(state, hung_nodes(), 25.0)
    answer = VerdictTaken(id=opened.id, revision=opened.revision, taken="killed the worker")
    [noted] = state.on_taken(answer, 25.0)
    assert (noted.revision, noted.taken) == (1, "killed the worker")
    assert state.on_taken(answer, 25.1) == [], "the driver answers each repetition"
    assert state.on_taken(VerdictTaken(id="worker:9:9:9:9#1", revision=0, taken="x"), 25.2) == []
    assert state.open_verdicts() == [noted]


def test_an_answer_to_an_older_revision_does_not_count_for_the_newer_one() -> None:
    state, nodes = MonitorState(CONFIG, RUN_ID), hung_nodes()
    [silent] = play(state, nodes, 25.0)
    nodes[1].states[3] = "gone"
    [crashed] = play(state, nodes, 25.5, start_s=25.0)
    late = VerdictTaken(id=silent.id, revision=silent.revision, taken="killed the worker")
    assert crashed.kind == "crash" and state.on_taken(late, 26.0) == []
    assert state.open_verdicts() == [crashed]


def test_nothing_is_given_again_before_somebody_has_acted() -> None:
    given = play(MonitorState(CONFIG, RUN_ID), hung_nodes(), 200.0)
    assert [one.kind for one in given] == ["silence"]


@pytest.mark.parametrize(
    ("letter", "kind"), [("R", "silence"), ("T", "stopped"), ("gone", "crash")]
)
def test_what_stands_after_it_was_acted_on_is_given_again(letter: str, kind: str) -> None:
    state, nodes = MonitorState(CONFIG, RUN_ID), hung_nodes()
    nodes[1].states[3] = letter if letter == "R" else "S"
    play(state, nodes, 19.9)
    nodes[1].states[3] = letter
    given = play(state, nodes, 60.0, start_s=20.0, answer=lambda _: "killed the worker")
    assert {(one.kind, one.rank, one.id) for one in given} == {(kind, 3, given[0].id)}
    assert [one.revision for one in given] == [0, 2, 4], "each answer is a revision too"
    assert all(one.taken == "" for one in given)
    assert {row.name: row.value for row in given[-1].evidence}["repeated"].startswith("2 times")


def test_a_hang_that_nobody_explains_never_becomes_the_fault_of_a_rank() -> None:
    timelines = lockstep(4, 100, lambda _: 0.4)
    for timeline in timelines:
        timeline.hang(20.0, "NORM")
    nodes = [SimulatedNode(index, timelines[2 * index : 2 * index + 2]) for index in range(2)]
    given = play(MonitorState(CONFIG, RUN_ID), nodes, 300.0, answer=response)
    assert len(given) > 3, "it is repeated as long as the answer does not help"
    assert {(one.id, one.kind, one.rank, response(one)) for one in given} == {
        (given[0].id, "unexplained_hang", -1, "restart_ranks")
    }


def test_of_two_ranks_that_wait_for_nobody_none_is_named_until_one_is_gone() -> None:
    state, nodes = MonitorState(CONFIG, RUN_ID), hung_nodes()
    nodes[0].timelines[0].hang(20.2, "BACKWARD")
    nodes[1].timelines[1].hang(20.0, "FORWARD")
    given = play(state, nodes, 30.0)
    assert [(one.kind, one.rank) for one in given] == [("unexplained_hang", -1)]
    nodes[1].states[3] = "gone"
    done = lambda one: "replaced the worker" if one.is_open else ""  # noqa: E731
    given = play(state, nodes, 60.0, start_s=30.0, answer=done)
    named = [(one.kind, one.rank) for one in given if one.is_open]
    assert named[0] == ("crash", 3) and ("silence", 0) in named


def test_a_node_without_an_agent_does_not_protect_a_hung_rank_of_another() -> None:
    state, nodes = MonitorState(CONFIG, RUN_ID), hung_nodes(culprit=1)
    play(state, nodes, 10.0)
    given = play(state, nodes[:1], 60.0, start_s=10.0, answer=lambda _: "observe: it still beats")
    assert given[0].kind == "node_silent"
    assert [(one.kind, one.rank) for one in given if one.kind != "node_silent"][:1] == [
        ("silence", 1)
    ]


def test_while_a_node_is_unheard_nobody_is_guessed_at() -> None:
    state, nodes = MonitorState(CONFIG, RUN_ID), hung_nodes(culprit=3)
    play(state, nodes, 10.0)
    given = play(state, nodes[:1], 120.0, start_s=10.0, answer=lambda _: "observe: it still beats")
    assert {one.kind for one in given} == {"node_silent"}


@pytest.fixture
def bench() -> Iterator[Bench]:
    with health_bench() as made:
        yield made


def test_a_verdict_repeats_until_it_is_answered_and_the_answer_is_written_down(
    bench: Bench,
) -> None:
    bench.answer = lambda _: ""  # not decided yet, as while the run is paused
    bench.driver(), bench.monitor(), bench.agent()
    with bench.worker(0), bench.worker(1) as victim:
        assert read_line(victim) == "up"
        bench.wait_for_ranks(2)
        os.kill(victim.pid, signal.SIGKILL)
        bench.wait(lambda: len(bench.verdicts) == 3, "the verdict three times")
        assert [one.revision for one in bench.verdicts] == [0, 0, 0]
        bench.answer = lambda _: "replaced the worker"
        bench.wait(lambda: verdicts_of(bench.root)[0].taken != "", "the answer in the file")
        assert taken_in(bench.root) == ["", "replaced the worker"]
        count = len(bench.verdicts)
        bench.wait_for_beats(25)  # two and a half seconds
        assert len(bench.verdicts) == count


def test_a_new_driver_at_another_epoch_is_told_and_asked_anew(bench: Bench) -> None:
    bench.monitor(), bench.agent()
    with bench.worker(0) as victim:
        assert read_line(victim) == "up"
        bench.wait_for_ranks(1)
        os.kill(victim.pid, signal.SIGKILL)
        bench.wait(lambda: len(verdicts_of(bench.root)) == 1, "a verdict without any driver")
        bench.answer = lambda _: ""
        first = bench.driver()
        bench.wait(lambda: bool(bench.verdicts), "it at the first driver")
        bench.servers.remove(first)
        first.close()  # it dies undecided
        bench.verdicts.clear()
        bench.answer = lambda _: "replaced the worker"
        bench.driver()
        bench.wait(lambda: bool(bench.verdicts), "it at the second driver")
        bench.wait(lambda: len(taken_in(bench.root)) == 2, "its answer in the file")
        bench.verdicts.clear()
        bench.driver()
        bench.wait(lambda: bool(bench.verdicts), "what stands, at the third")
        assert [one.taken for one in bench.news()] == ["replaced the worker"]


def taken_in(run_dir: Path) -> list[str]:
    return [one.taken for one in read_verdicts(run_dir / "verdicts.jsonl")]
