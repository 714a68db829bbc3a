"""``headway runs``: every run with its state, age and size, and how to resume it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from headway.console.testing import FakeRun

Shell = Callable[..., tuple[int, str, str]]


def test_runs_lists_every_state(fake: FakeRun, shell: Shell) -> None:
    fake.advance(2)
    states = []
    for _ in range(2):
        _, out, _ = shell("runs", "--json")
        (row,) = json.loads(out)
        states.append((row["state"], row["step"]))
        fake.close()
    assert states == [("live", 2), ("interrupted", 2)]


def test_runs_have_age_size_and_the_command_that_resumes_them(
    fake: FakeRun, shell: Shell, own_roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_roots)
    fake.advance(3)
    _, out, _ = shell("runs")
    assert "just now" in out and "MiB" in out and "resume" not in out, "a live one needs nothing"
    fake.finish("stopped")
    os.utime(fake.folder.run_json, (0, 0))
    _, out, _ = shell("runs")
    assert "d ago" in out
    assert out.splitlines()[-1] == "resume fake:  headway run runs/fake/config.toml --name fake"
    (row,) = json.loads(shell("runs", "--json")[1])
    assert row["resume"] in out and row["size_bytes"] > 0 and row["started_unix_s"] == 0


def test_a_run_whose_configuration_cannot_be_read_is_still_listed(
    fake: FakeRun, shell: Shell
) -> None:
    fake.folder.config.write_text("[trian]")
    code, out, _ = shell("runs")
    assert code == 0 and "fake  live   0/?" in out


def test_a_long_name_moves_the_column_for_all_rows(fake: FakeRun, shell: Shell) -> None:
    other = FakeRun(fake.folder.path.parent, name="learning-rate-sweep-of-all-widths-at-3e-4")
    other.close()
    _, out, _ = shell("runs")
    lines = out.partition("\n\n")[0].splitlines()
    assert len(lines) == 3
    assert (
        len(
            {
                line.index(word)
                for line, word in zip(lines, ("state", "live", "interr"), strict=True)
            }
        )
        == 1
    )
