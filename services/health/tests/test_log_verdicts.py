"""Episodes of log lines: one verdict per problem and device, with line, file and program."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.health import Finding, Verdict
from headway.health.config import HealthConfig
from headway.health.reporter import Reporter
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, SimulatedNode, lockstep
from structlog.testing import capture_logs


def hit(
    offset: int, rule: str = "nan_loss", line: str = "loss: nan", inode: int = 1, name: str = ""
) -> Finding:
    return Finding(
        rule=rule,
        source="rank",
        file="/logs/a:b.log",
        inode=inode,
        offset=offset,
        line=line,
        rank=0,
        name=name,
    )


def test_repeated_and_further_lines_are_one_episode_that_ends_in_quiet() -> None:
    state, node = (
        MonitorState(HealthConfig(), RUN_ID),
        SimulatedNode(0, lockstep(1, 2000, lambda _: 0.4)),
    )
    lines = {**dict.fromkeys(range(1, 10), (hit(100), hit(200))), 20: (hit(300),), 120: (hit(400),)}
    told: list[tuple[float, Verdict]] = []
    for turn in range(1, 400):
        now_s = turn / 2
        told += [
            (now_s, one) for one in state.on_beat(node.beat(now_s, lines.get(turn, ())), now_s)
        ]
        told += [(now_s, one) for one in state.tick(now_s)]
    assert [(one.kind, one.rank, one.is_open) for _, one in told] == [
        ("nan_loss", 0, True),
        ("nan_loss", 0, False),
    ]
    (_, opened), (closed_s, closed) = told
    assert closed_s > 60.0 + HealthConfig().log_quiet_s, "quiet counts from the last line"
    assert closed.evidence[-1].value.startswith("4 findings")
    again = state.on_beat(node.beat(200.0, (hit(500),)), 200.0)
    assert [one.is_open for one in again] == [True] and again[0].id != opened.id


def test_a_restarted_monitor_knows_the_lines_it_has_told_of() -> None:
    node = SimulatedNode(0, lockstep(1, 100, lambda _: 0.4))
    first = MonitorState(HealthConfig(), RUN_ID)
    told = first.on_beat(node.beat(1.0, (hit(100),)), 1.0)
    second = MonitorState(HealthConfig(), RUN_ID)
    second.restore(told)
    assert second.on_beat(node.beat(2.0, (hit(100), hit(200))), 2.0) == []
    assert [
        one.kind for one in second.on_beat(node.beat(2.5, (hit(10, "disk_full", inode=2),)), 2.5)
    ] == ["disk_full"]


def xid(number: int, gpu: str, offset: int) -> Finding:
    """As the agent sends it."""
    line = f"NVRM: Xid (PCI:{gpu}): {number}, pid=4711, name=python3"
    rule = "gpu_lost" if number == 79 else f"xid_{number}"
    return hit(offset, rule, line, name=gpu)


def test_each_gpu_has_its_own_verdict_for_an_xid_and_is_named_in_it() -> None:
    node, state = (
        SimulatedNode(0, lockstep(1, 100, lambda _: 0.4)),
        MonitorState(HealthConfig(), RUN_ID),
    )
    places = [
        (13, "0000:45:00.0"),
        (79, "0000:45:00.0"),
        (13, "0000:45:00.0"),
        (79, "0000:5e:00.0"),
    ]
    lines = [xid(*place, at) for at, place in enumerate(places, 1)]
    told = state.on_beat(node.beat(1.0, tuple(lines)), 1.0)
    said = [one.remedy[:29] for one in told]
    assert said == [
        "GPU 0000:45:00.0: Xid 13 (gra",
        "GPU 0000:45:00.0: the GPU has",
        "GPU 0000:5e:00.0: the GPU has",
    ]
    assert {one.action for one in told} == {"observe"}
    later = MonitorState(HealthConfig(), RUN_ID)
    later.restore(told)
    again = node.beat(2.0, (xid(79, "0000:5e:00.0", 9), xid(79, "0000:c1:00.0", 10)))
    assert [one.remedy[4:14] for one in later.on_beat(again, 2.0)] == ["0000:c1:00"]


@pytest.mark.parametrize(
    ("file", "line", "program"),
    [
        ("/r/logs/n1w3.log", "OSError: [Errno 5] Input/output error: '/mnt/a'", "worker"),
        ("/r/logs/n1-dataloader.log", "OSError: [Errno 5] Input/output error", "dataloader"),
        ("/r/logs/n1w3.log", '{"event": "Input/output error", "service": "trainer"}', "trainer"),
    ],
)
def test_a_verdict_from_a_line_says_which_line_of_which_file_and_program(
    file: str, line: str, program: str
) -> None:
    state = MonitorState(HealthConfig(), RUN_ID)
    found = Finding(rule="read_only_disk", source="rank", file=file, inode=7, offset=70, line=line)
    node = SimulatedNode(0, lockstep(1, 100, lambda _: 0.4))
    (told,) = state.on_beat(node.beat(1.0, (found,)), 1.0)
    rows = {row.name: row.value for row in told.evidence}
    assert rows == {"line": line, "at": f"{file}:7:70", "program": program}
    assert "disk or mount in the line" in told.remedy and "drain" not in told.remedy


def test_a_rule_of_a_later_version_is_skipped() -> None:
    node, state = (
        SimulatedNode(0, lockstep(1, 100, lambda _: 0.4)),
        MonitorState(HealthConfig(), RUN_ID),
    )
    assert state.on_beat(node.beat(1.0, (hit(1, "rule_of_tomorrow"),)), 1.0) == []


def test_the_monitors_log_shows_the_line_that_matched(tmp_path: Path) -> None:
    line = "OSError: [Errno 5] Input/output error: '/mnt/a'"
    found = Finding(
        rule="read_only_disk",
        source="rank",
        file="/r/logs/n1w0.log",
        inode=7,
        offset=70,
        line=line,
    )
    node = SimulatedNode(0, lockstep(1, 100, lambda _: 0.4))
    told = MonitorState(HealthConfig(), RUN_ID).on_beat(node.beat(1.0, (found,)), 1.0)
    with closing(Reporter(tmp_path, KeyPair.generate())) as reporter, capture_logs() as logged:
        reporter.report(told, 1.0)
    (one,) = logged
    assert (one["log_level"], one["line"], one["program"]) == ("warning", line, "worker")
    assert one["at"].startswith("/r/logs/n1w0.log:")
