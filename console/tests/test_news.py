"""One fault is one line: the cause, not the symptoms, and what it cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from headway.console.live import news
from headway.console.live.news import News
from headway.console.testing import FakeRun

Lines = Callable[..., list[str]]


@pytest.fixture
def lines(fake: FakeRun) -> Lines:
    """What is printed after these journal events, some of them with their fields."""
    reader = News(fake.run)

    def told(*events: tuple[str, dict[str, object]]) -> list[str]:
        for name, fields in events:
            fake._do(lambda name=name, fields=fields: fake._log(name, **fields))  # type: ignore[misc]
        return [line.partition("; back after")[0] for _, line in reader.read()]

    return told


def _fence(reason: str, *, is_symptom: bool = False) -> tuple[str, dict[str, object]]:
    return "fence", {"generation": 0, "step": 3, "reason": reason, "is_symptom": is_symptom}


def _lost(rank: int | None, reason: str = "killed") -> tuple[str, dict[str, object]]:
    return "worker_lost", {"worker": "w7", "rank": rank, "reason": reason, "generation": 0}


def _verdict(kind: str, rank: int = 1) -> tuple[str, dict[str, object]]:
    fields = {"kind": kind, "node": 0, "rank": rank, "remedy": "wait", "is_open": True}
    return "verdict", fields


BACK: tuple[tuple[str, dict[str, object]], ...] = (
    ("generation", {"generation": 1, "source": "arena", "step": 3}),
    ("stepping", {"generation": 1, "step": 4}),
)
INJECTED = ("injected", {"target": "worker", "fault": "kill", "rank": 1, "node": 0})


def test_a_symptom_that_comes_first_is_replaced_by_its_cause(lines: Lines) -> None:
    peer = _fence("rank 0 lost a peer: connection reset", is_symptom=True)
    assert lines(INJECTED, peer, _lost(1), *BACK) == ["rank 1 was killed"]


def test_a_symptom_is_told_when_nothing_better_is_known(lines: Lines) -> None:
    peer = _fence("rank 0 lost a peer: connection reset", is_symptom=True)
    assert lines(peer, *BACK) == ["rank 0 lost a peer: connection reset"]


def test_ranks_that_fall_together_are_one_line(lines: Lines) -> None:
    events = (_lost(1), _fence("rank 1 is lost: killed"), _lost(3), _lost(0, "did not leave"))
    assert lines(*events, *BACK) == ["ranks 1 and 3 were killed"]


def test_a_lost_node_is_the_cause_not_its_ranks(lines: Lines) -> None:
    events = (
        ("evicted", {"node": 1}),
        ("node_lost", {"node": 1, "reason": "evicted"}),
        _fence("node 1 is lost: evicted"),
        _lost(2, "gone"),
        ("node_replaced", {"node": 1, "spare": 2, "ranks": [2, 3]}),
    )
    assert lines(*events, *BACK) == ["node 1 was evicted; node 2 took over from node 1"]


def test_a_verdict_before_or_after_a_recovery_belongs_to_it(lines: Lines) -> None:
    hang = (_verdict("silence"), _lost(1, "silence"), _fence("rank 1 is lost: silence"))
    assert lines(*hang, *BACK, _verdict("crash")) == ["rank 1 hung"]


def test_what_no_recovery_follows_is_a_line_of_its_own(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lines(_verdict("slow")) == ["verdict: slow on node 0, rank 1; wait"]
    assert lines(_lost(None)) == [], "it may belong to a recovery that is about to begin"
    monkeypatch.setattr(news, "HOLD_S", 0.0)
    assert lines() == ["standby worker w7 was killed"]


def test_a_hang_is_reported_before_it_is_ended_and_counts_as_its_cause(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "the ranks hung, and which one caused it is not known"
    assert lines(_verdict("unexplained_hang", -1), _fence(why), *BACK) == [why]
    monkeypatch.setattr(news, "HOLD_S", 0.0)
    named = lines(_verdict("unexplained_hang", -1), _verdict("silence", 2))
    hang, rank = [*named, *lines()]
    assert hang.endswith("is not known; if that lasts, all of them start again")
    assert rank == ("rank 2 hangs while the others wait for it; if that lasts, it is replaced")


def test_a_driver_that_was_killed_on_purpose_is_one_line(lines: Lines) -> None:
    kill = ("injected", {"target": "driver", "fault": "kill", "rank": -1, "node": 0})
    assert lines(kill, ("adopted", {"generation": 0})) == ["a new driver took over generation 0"]


def test_a_recovery_that_the_end_cuts_short_is_told_once(lines: Lines) -> None:
    over = ("run_over", {"outcome": "failed", "detail": "rank 1 failed: bug (5 times at step 3)"})
    assert lines(_fence("rank 1 failed: bug"), over) == [
        "run failed: rank 1 failed: bug (5 times at step 3)"
    ]
    stopped = ("run_over", {"outcome": "stopped", "detail": ""})
    assert lines(_fence("rank 1 failed: bug"), stopped) == [
        "rank 1 failed: bug; the run ended before all ranks were back",
        "run stopped",
    ]


def test_commands_are_lines_with_what_they_set(lines: Lines) -> None:
    def command(operation: str, name: str, value: float) -> tuple[str, dict[str, object]]:
        fields = {"sequence": 3, "operation": operation, "name": name, "value": value}
        return "command", fields

    sent = (command("set", "lr", 3e-4), command("unset", "lr", 0.0), command("pause", "", 0.0))
    assert lines(*sent) == ["command 3: set lr=0.0003", "command 3: unset lr", "command 3: pause"]


def test_verdicts_about_the_victims_of_a_fault_belong_to_its_recovery(lines: Lines) -> None:
    victims = [_verdict("collective_timeout", rank=-1)]
    lost = (_lost(1, "killed"), _fence("rank 1 is lost: killed"))
    assert lines(*victims, *lost, *BACK) == ["rank 1 was killed"]
    assert lines(*lost, *victims, *BACK, *victims) == ["rank 1 was killed"]
    assert lines() == []


def test_a_rank_that_the_kernel_killed_for_want_of_memory_is_said_to_be(lines: Lines) -> None:
    why = "killed by the kernel: out of memory"
    lost = (_lost(1, why), _fence(f"rank 1 is lost: {why}"))
    assert lines(*lost, *BACK) == [f"rank 1 was {why}"]


def test_victims_of_what_no_recovery_follows_are_one_line(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, fields = _verdict("peer_lost", rank=-1)
    said = "ranks have lost another one, and nothing shows which one failed first"
    assert lines(*[(name, {**fields, "finding": said})] * 2) == []
    monkeypatch.setattr(news, "HOLD_S", 0.0)
    assert lines() == [said]
    assert lines() == []


def test_a_verdict_from_a_log_line_shows_line_file_and_program(lines: Lines) -> None:
    name, fields = _verdict("disk_fault", rank=-1)
    place = {"line": "Input/output error: '/mnt/a'\x1b[2J", "file": "/r/logs/n1w0.log"}
    (said,) = lines((name, {**fields, **place, "program": "worker"}))
    assert said.startswith("verdict: disk_fault on node 0, from n1w0.log (worker): ")
    assert said.endswith("\"Input/output error: '/mnt/a'\\x1b[2J\"; wait")


def test_a_verdict_about_a_service_names_no_rank(lines: Lines) -> None:
    assert lines(_verdict("data_stall", rank=-1)) == ["verdict: data_stall on node 0; wait"]


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        (
            {"reason": "it was killed by SIGKILL", "is_training": True},
            ": it was killed by SIGKILL; training was not interrupted",
        ),
        ({"reason": "", "is_training": False}, ""),
    ],
)
def test_an_executor_that_was_replaced_is_one_line_with_the_reason(
    lines: Lines, fields: dict[str, object], more: str
) -> None:
    (line,) = lines(("executor_restarted", {"node": 0, **fields}))
    assert line == f"the executor of node 0 was started again{more}"
    during = (_fence("rank 1 left"), ("executor_restarted", {"node": 0, **fields}))
    assert lines(*during) == [], "a part of the recovery"


def test_silence_of_an_executor_and_a_lost_init_are_told(lines: Lines) -> None:
    silent, lost = lines(
        ("node_silent", {"node": 0, "silent_s": 3.1}), ("init_restarted", {"node": 1})
    )
    assert silent == "the executor of node 0 has not reported for 3.1 s; it is started again"
    assert lost.startswith("the init of node 1 has ended and was started again; training")


def test_what_becomes_of_nodes_and_snapshots_is_told(lines: Lines) -> None:
    events: tuple[tuple[str, dict[str, object]], ...] = (
        ("executor_ended", {"node": 1}),
        ("node_returned", {"node": 1, "killed": []}),
        ("snapshot_damaged", {"node": 0, "rank": 1, "reason": "bad digest"}),
        ("draining", {"node": 1, "notice_s": 300.0, "step": 5}),
        ("eviction_refused", {"node": 1, "reason": "no spare is ready for node 1"}),
        ("run_over", {"outcome": "finished", "detail": "", "step": 9}),
    )
    assert lines(*events) == [
        "the init of node 1 has ended; it is started again",
        "node 1 is back as a spare",
        "snapshot of rank 1 on node 0 is damaged and not used: bad digest",
        "node 1 is draining: a checkpoint, then a spare takes over",
        "node 1 stays in the run: no spare is ready for node 1",
        "run finished",
    ]


def test_an_event_of_another_version_is_shown_as_it_is(lines: Lines) -> None:
    assert lines(("verdict", {"text": "new", "kind": "slow"})) == [
        "verdict: {'kind': 'slow', 'text': 'new'}"
    ]
