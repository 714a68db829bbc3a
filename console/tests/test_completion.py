"""Shell completion: names of runs, ranks, nodes and log files, without importing anything heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from headway.console.testing import FakeRun

HEADWAY = str(Path(sys.executable).with_name("headway"))


def complete(line: str, cwd: Path, **environment: str) -> list[str]:
    """What bash offers after ``line``; a trailing blank begins a new word."""
    words = line.split()
    at = len(words) - (not line.endswith(" "))
    env = {
        **os.environ, **environment,
        "_HEADWAY_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(at),
    }  # fmt: skip
    done = subprocess.run([HEADWAY], capture_output=True, text=True, env=env, cwd=cwd, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("headway status ", ["fake", "other"]),
        ("headway watch f", ["fake"]),
        ("headway set ", ["fake", "other", "lr="]),
        ("headway set fake l", ["lr="]),
        ("headway evict ", ["0", "fake", "other"]),
        ("headway inject kill --rank ", ["0", "1"]),
        ("headway inject other kill --rank ", []),
        ("headway inject fake kill --rank ", ["0", "1"]),
        ("headway logs other --rank ", []),
        ("headway logs fake --rank 1", ["1"]),
        ("headway logs fake --name ", ["n0-driver"]),
        ("headway logs --level w", ["warning"]),
        ("headway config diff ", ["fake", "other"]),
        ("headway sto", ["stop"]),
        ("headway stop --no", ["--now", "--no-wait"]),
    ],
)
def test_what_a_shell_offers(line: str, offered: list[str], fake: FakeRun, own_roots: Path) -> None:
    (fake.folder.logs / "n0-driver.log").write_text("")
    other = own_roots / "runs" / "other"
    other.mkdir()
    (other / "run.json").write_text("{}")
    os.utime(other / "run.json", (0, 0))  # the older one
    assert sorted(complete(line, own_roots)) == sorted(offered)


def test_a_folder_without_runs_offers_nothing(tmp_path: Path) -> None:
    assert complete("headway status ", tmp_path) == []
    assert complete("headway inject kill --rank ", tmp_path) == []


def test_completion_imports_nothing_heavy(fake: FakeRun, own_roots: Path) -> None:
    del fake
    env = {
        **os.environ, "PYTHONPROFILEIMPORTTIME": "1", "_HEADWAY_COMPLETE": "complete_bash",
        "COMP_WORDS": "headway inject kill --rank ", "COMP_CWORD": "4",
    }  # fmt: skip
    done = subprocess.run([HEADWAY], capture_output=True, text=True, env=env, cwd=own_roots)
    assert done.stdout.split() == ["0", "1"]
    loaded = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert "typer" in loaded, "the import log is not read"
    assert loaded & {"torch", "numpy", "polars", "zmq", "msgspec", "rich"} == set()
