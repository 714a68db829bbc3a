"""The commands that only read a run: its trace, its course, its log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from headway.console.testing import FakeRun

Shell = Callable[..., tuple[int, str, str]]


def test_trace_writes_where_it_is_told(fake: FakeRun, shell: Shell, tmp_path: Path) -> None:
    fake.advance(2)
    code, out, _ = shell("trace", "fake", "-o", str(tmp_path / "t.json"), "--json")
    assert code == 0
    assert json.loads(out)["slices"] == len(
        [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] in "Xi"]
    )


def test_trace_writes_the_newest_steps_and_all_if_it_is_asked_to(
    fake: FakeRun, shell: Shell, tmp_path: Path
) -> None:
    fake.advance(60)
    steps: list[set[int]] = []
    for words in ([], ["--steps", ":"]):
        code, out, _ = shell("trace", "fake", "-o", str(tmp_path / "t.json"), *words)
        assert code == 0 and ("the last 50 steps" in out) == (not words)
        events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
        steps.append({e["args"]["step"] for e in events if e["name"].startswith("FORWARD")})
    newest, every = steps
    assert newest < every and len(newest) == 50


def test_watch_of_an_ended_run_ends_and_tells_how(fake: FakeRun, shell: Shell) -> None:
    fake.advance(1)
    fake.finish()
    code, out, _ = shell("watch", "fake", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and lines[-1]["phase"] == "finished"


def test_a_failed_run_makes_watch_exit_1(fake: FakeRun, shell: Shell) -> None:
    fake.finish("failed")
    assert shell("watch", "fake")[0] == 1


def test_logs_are_in_order_of_time_over_files(fake: FakeRun, shell: Shell) -> None:
    def line(second: int, event: str, **fields: object) -> str:
        return json.dumps(
            {"timestamp": f"2026-01-01T00:00:0{second}Z", "level": "info", "event": event, **fields}
        )

    (fake.folder.logs / "n0-driver.log").write_text(
        f"{line(1, 'one')}\n{line(3, 'three', level='warning')}\n"
    )
    (fake.folder.logs / "n0-w1.log").write_text(
        f"{line(2, 'two', rank=1)}\nTraceback (most recent call last)\nhalf"
    )
    _, out, _ = shell("logs", "fake", "--json")
    assert [json.loads(said)["event"] for said in out.splitlines()] == [
        "one", "two", "Traceback (most recent call last)", "three",
    ]  # fmt: skip
    _, out, _ = shell("logs", "fake", "--rank", "1", "--json")
    assert [json.loads(said)["event"][:5] for said in out.splitlines()] == ["two", "Trace"]
    _, out, _ = shell("logs", "fake", "--level", "warning", "-n", "5")
    assert out.split() == ["00:00:03Z", "n0-driver", "warning", "three"]
