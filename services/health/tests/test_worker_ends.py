"""A rank that is replaced before the next beat has one verdict on its end, if nobody ordered it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from headway.common.node.worker_ends import MAX_KEPT, WorkerEnds, read_ends
from headway.common.wire.messages.health import EndKind, VerdictTaken, WorkerEnd
from headway.health.client import response
from headway.health.detectors.worker_ends import SEEN_S
from headway.health.diagnosis.of_verdict import diagnosis_of
from headway.health.first_cause.victims import WAIT_S
from headway.health.sources.ends import REPEAT_S, EndSource
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, lockstep

from services.health.tests.first_cause.played import (
    CLOSED,
    Played,
    closed_by_peer,
    line,
    oom_kill,
    rows,
)

ERROR = "ValueError: bad shard [data.py:88 < loop.py:12]"


def end_of(rank: int, how: EndKind, generation: int = 0, **fields: Any) -> WorkerEnd:
    """Of the process that the rank has in the played run."""
    return WorkerEnd(
        worker=f"n{rank // 2}w{rank}", rank=rank, generation=generation, pid=1000 + rank,
        start_ticks=1, how=how, **fields,
    )  # fmt: skip


def note(played: Played, *ends: WorkerEnd) -> None:
    """The executors note these, and the beats repeat them from now on."""
    for end in ends:
        node = played.node_of(end.rank)
        node.ends = (*node.ends, end)


def replaced(played: Played, rank: int) -> None:
    """Another process has the rank in the next generation before the next beat."""
    for one in played.nodes:
        one.generation += 1
    played.node_of(rank).signals[rank] = {"pid": 2000 + rank, "start_ticks": 7}


def ids(played: Played) -> set[str]:
    return {one.id for one in played.verdicts}


@pytest.mark.parametrize(
    ("how", "fields", "kind", "cause", "words"),
    [
        ("killed", {}, "crash", "unknown", "none"),
        ("out_of_memory", {}, "crash", "out_of_memory", "none"),
        ("stopped", {}, "stopped", "host_stall", "none"),
        ("exited", {"exit_code": 1, "reason": ERROR}, "crash", "program_error", ERROR),
        (
            "exited",
            {"exit_code": 1, "reason": "OSError: [Errno 5] Input/output error"},
            "crash",
            "disk_fault",
            "OSError",
        ),
    ],
)
def test_an_end_that_no_beat_saw_is_one_verdict_that_closes_with_the_replacement(
    how: EndKind, fields: dict[str, Any], kind: str, cause: str, words: str
) -> None:
    played = Played()
    note(played, end_of(3, how, age_s=0.25, **fields))
    replaced(played, 3)
    played.run(10.0)
    assert len(ids(played)) == 1
    opened = [one for one in played.verdicts if one.is_open][-1]
    assert (opened.kind, opened.cause, opened.rank, opened.node) == (kind, cause, 3, 1)
    assert (opened.pid, opened.generation) == (1003, 0)
    assert opened.unix_s - opened.since_unix_s == pytest.approx(0.25)
    assert opened.since_error_s == SEEN_S
    assert rows(opened, "last_words")[0].startswith(words)
    assert not played.verdicts[-1].is_open and played.open() == []
    assert rows(played.verdicts[-1], "replaced_by") == ["pid 2003 on node 1 in generation 1"]


@pytest.mark.parametrize(
    "end", [end_of(3, "ordered", reason="evicted"), end_of(3, "exited", exit_code=0)]
)
def test_what_the_run_asked_for_is_no_verdict_even_if_a_beat_sees_the_dead(end: WorkerEnd) -> None:
    played = Played()
    note(played, end)
    played.end(3)
    if end.exit_code == 0:
        played.node_of(3).states[3] = "done"
    played.run(5.0)
    assert played.verdicts == []


def test_a_beat_that_sees_the_dead_first_and_its_end_later_are_one_verdict() -> None:
    played = Played()
    played.end(3)
    played.run()
    note(played, end_of(3, "out_of_memory"))
    played.run(2.0)
    (crash,) = played.open()
    assert (crash.cause, crash.rank) == ("out_of_memory", 3)
    assert len(rows(crash, "last_words")) == len(rows(crash, "state")) == 1
    assert rows(crash, "why") == ["killed by the kernel: out of memory"]


def test_an_end_and_then_the_dead_in_a_beat_are_one_verdict() -> None:
    played = Played()
    note(played, end_of(3, "stopped"))
    played.end(3)
    played.run(5.0)
    (stopped,) = played.open()
    assert stopped.kind == "stopped" and len(ids(played)) == 1


def test_who_may_have_killed_it_is_said() -> None:
    played = Played()
    note(played, end_of(3, "killed"))
    played.run()
    (crash,) = played.open()
    (sender,) = rows(crash, "sender")
    assert "not Headway and not the OOM killer" in sender
    assert diagnosis_of(crash).summary == "rank 3 on node 1 has ended: killed by a signal"


def test_the_kernels_line_is_a_row_of_the_end_and_confirms_its_cause() -> None:
    played = Played()
    note(played, end_of(3, "out_of_memory"))
    played.run()
    played.find(1, oom_kill(1003, group=True))
    played.run(1.0)
    (crash,) = [one for one in played.open() if one.kind == "crash"]
    (because,) = rows(crash, "because")
    assert because.startswith("Memory cgroup out of memory: Killed process 1003")
    assert crash.cause == "out_of_memory" and crash.subject == "rank"


def test_an_error_that_leaves_the_process_alive_asks_for_nothing_and_closes_when_it_is_back() -> (
    None
):
    played = Played()
    note(played, end_of(3, "raised", reason=ERROR))
    played.run()
    (crash,) = played.open()
    assert (crash.kind, crash.cause, crash.subject) == ("crash", "program_error", "program")
    assert response(crash) == "observe", "an innocent process lives on under this pid"
    assert diagnosis_of(crash).summary.startswith("rank 3 on node 1 has raised an error")
    for one in played.nodes:
        one.generation += 1
    played.run(5.0)
    assert played.open() == [] and len(ids(played)) == 1


def test_the_same_process_that_raises_again_later_has_another_verdict() -> None:
    played = Played()
    note(played, end_of(3, "raised", reason=ERROR))
    played.run()
    for one in played.nodes:
        one.generation += 1
    played.run()
    note(played, end_of(3, "raised", 1, reason=ERROR))
    played.run()
    assert len(ids(played)) == 2 and len(played.open()) == 1


def test_an_end_that_a_beat_lacks_and_a_later_one_repeats_is_no_other_verdict() -> None:
    played = Played()
    end = end_of(3, "killed", age_s=0.25)
    note(played, end)
    replaced(played, 3)
    played.run(5.0)
    played.node_of(3).ends = ()
    played.run(10.0)
    note(played, end)
    played.run(15.0)
    assert len(ids(played)) == 1 and played.open() == []


def test_a_broken_gpu_does_not_have_the_node_of_a_living_process_given_up() -> None:
    played = Played()
    note(played, end_of(3, "raised", reason="RuntimeError: CUDA error: an illegal access"))
    xid = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1003, GPU has fallen off the bus."
    played.find(1, line("gpu_lost", xid, subject="gpu", name="0000:9b:00.0"))
    played.run()
    (crash,) = [one for one in played.open() if one.kind == "crash"]
    assert response(crash) == "observe"


def test_peers_that_end_by_it_become_its_rows() -> None:
    played = Played()
    note(played, end_of(3, "killed"))
    note(played, end_of(5, "raised", reason=CLOSED, age_s=0.1))
    played.find(0, closed_by_peer(0))
    played.run(10.0)
    (crash,) = played.open()
    assert crash.rank == 3 and len(rows(crash, "victim")) == 2


def test_a_rank_that_survived_one_loss_and_is_killed_next_is_not_its_victim() -> None:
    played = Played()
    note(played, end_of(3, "killed"))
    played.find(2, closed_by_peer(4))
    replaced(played, 3)
    played.run(5.0)
    note(played, end_of(4, "killed", 1))
    replaced(played, 4)
    played.run(5.0)
    crashes = {one.rank: one for one in played.verdicts if one.kind == "crash"}
    assert set(crashes) == {3, 4} and crashes[4].alternatives == ()


def restarted(played: Played) -> None:
    """Another monitor takes over from what the first one has written."""
    before = played.state
    played.state = MonitorState(before.config, RUN_ID, clock_s=lambda: 1000.0 + played.now_s)
    played.state.restore(list(played.verdicts))


def test_a_monitor_that_starts_anew_repeats_nothing_and_reports_what_was_missed() -> None:
    played = Played()
    note(played, end_of(3, "killed"))
    replaced(played, 3)
    played.run(2.0)
    before = len(played.verdicts)
    note(played, end_of(6, "killed", 1))
    restarted(played)
    new = played.run(5.0)
    assert {one.rank for one in new} == {6} and len(played.verdicts) > before


def test_an_answer_of_the_driver_is_recorded() -> None:
    played = Played()
    note(played, end_of(3, "killed"))
    (crash,) = played.run()
    answer = VerdictTaken(
        id=crash.id, revision=crash.revision, taken="none: generation 0 has ended"
    )
    (answered,) = played.state.on_taken(answer, played.now_s)
    assert answered.taken == answer.taken


# ---- the executor's list ------------------------------------------------------------------------
def test_the_agent_repeats_an_end_for_a_while_and_while_its_ring_is_there(tmp_path: Path) -> None:
    now_ns = [time.monotonic_ns()]
    source = EndSource(tmp_path, lambda: now_ns[0])
    (signals,) = [one.sample(1.0) for one in lockstep(1, 2, lambda _: 1.0)]
    assert source.read([signals]) == ()
    ends = WorkerEnds(tmp_path)
    own = msgspec.structs.replace(end_of(0, "ordered"), at_ns=now_ns[0])
    other = msgspec.structs.replace(end_of(1, "killed"), at_ns=now_ns[0])
    ends.add(own, own.at_ns)
    ends.add(other, other.at_ns)
    now_ns[0] += 2_000_000_000
    assert [(one.rank, one.age_s) for one in source.read([])] == [(0, 2.0), (1, 2.0)]
    now_ns[0] += int(REPEAT_S * 1e9)
    assert [one.rank for one in source.read([signals])] == [0]


def test_the_list_is_bounded_continued_by_a_successor_and_written_again_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = WorkerEnds(tmp_path)
    for generation in range(MAX_KEPT + 5):
        ends.add(end_of(0, "killed", generation), generation)
    assert [one.generation for one in read_ends(tmp_path)] == list(range(5, MAX_KEPT + 5))
    successor = WorkerEnds(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("headway.common.node.worker_ends.replace_file", full)
        successor.add(end_of(0, "killed", 100), 100)
        assert read_ends(tmp_path)[-1].generation == MAX_KEPT + 4
    successor.write()
    assert [one.generation for one in read_ends(tmp_path)][-2:] == [MAX_KEPT + 4, 100]
    (tmp_path / "ends.json").write_bytes(b"nonsense")
    assert read_ends(tmp_path) == ()


def test_an_end_that_is_over_within_its_beat_has_victims_as_well() -> None:
    """A busy agent may see the end of a rank and its successor at once."""
    played = Played()
    note(played, end_of(0, "killed"))
    played.node_of(0).signals[0] = {"pid": 4711}
    for node in played.nodes:
        node.generation = 1
    (crash,) = {one.id for one in played.run()}
    assert played.open() == []
    played.find(3, closed_by_peer(7))
    played.run(2 * WAIT_S)
    assert set(played.newest()) == {crash}
    assert len(rows(played.newest()[crash], "victim")) == 1
