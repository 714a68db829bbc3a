"""``headway ablate`` with real processes: twice the same order, kept when interrupted."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from headway.common.node.run_dir import ENV_SHM_ROOT
from headway.common.node.testing import wait_until
from headway.console.ablation.record import FILE
from headway.console.ablation.shown import Ablation
from headway.console.cli import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = str(ROOT / "examples" / "ablate.toml")
TINY = [
    f"--set={setting}"
    for setting in (
        "model.hidden=64", "model.heads=2", "model.seq_len=64", "model.vocab_size=512",
        "parallel.tp=1", "parallel.dp=1", "launch.ranks_per_node=2", "parallel.tp_pieces=1",
    )
]  # fmt: skip
QUICK = ["--stand-in", "--rungs", "pp,lamb", "--rounds", "3", "--steps", "4", *TINY]
LIMIT_S = 120.0


def apart(gains: dict[str, Any]) -> set[tuple[str, str]]:
    """Pairs of rungs of which the first gains more, by more than the larger spread."""
    alone = {rung: found["alone"] for rung, found in gains.items()}
    return {
        (a, b)
        for a, b in itertools.permutations(alone, 2)
        if alone[a]["median"] - alone[b]["median"] > max(alone[a]["spread"], alone[b]["spread"])
    }


@pytest.mark.timeout(300)
def test_two_ablations_agree_on_what_is_apart_by_more_than_the_spread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for name in ("first", "second"):
        out = tmp_path / name
        assert main(["ablate", EXAMPLE, *QUICK, "--out", str(out), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert list(said) == ["path", "table", "ranking", "record"]
        kept = json.loads((out / FILE).read_text())
        assert kept["stand_in"] and "STAND-IN" in (out / "ablate.html").read_text()
        assert all(not one["error"] and len(one["trials"]) == 3 for one in kept["variants"])
        assert all(t["eval_loss"] is None for one in kept["variants"] for t in one["trials"])
        found.append(apart(kept["gains"]))
    first, second = found
    assert not {(b, a) for a, b in first} & second


@pytest.mark.timeout(300)
def test_an_interrupt_keeps_the_measurements_and_leaves_no_process(tmp_path: Path) -> None:
    out, root = tmp_path / "out", tmp_path / "shm"  # other tests make trials as well
    words = ["ablate", EXAMPLE, *QUICK, "--rounds", "1000", "--out", str(out)]
    with (tmp_path / "log").open("w+") as log:
        command = [sys.executable, "-m", "headway.console", *words]
        env = {**os.environ, ENV_SHM_ROOT: str(root)}
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=env)
        try:
            wait_until(lambda: (out / FILE).exists(), LIMIT_S)
            assert _forking(root)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            assert process.wait(LIMIT_S) == 130
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        text = log.read()
    assert "INTERRUPTED after" in text and "none of its processes is running" in text
    assert "Traceback" not in text
    assert Ablation.read(out).record.interrupted
    assert list(root.glob("trials-*")) == []
    assert _forking(root) == set()


def _forking(root: Path) -> set[int]:
    """Processes that fork ranks with a folder in ``root``, or are such."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
            if b"headway.trainer\0trials\0" in words and os.fsencode(root) in words:
                found.add(int(entry.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--rungs", "windo"], "did you mean 'window'"),
        (["--rungs", "pp", "--set", "parallel.pp=1"], "tp x pp x dp"),
        (["--steps", "5"], "--steps 5 is not a multiple of 4"),
        (["--rounds", "0"], "--rounds 0 is below 1"),
        (["--out", "."], "--out . exists"),
    ],
)
def test_bad_input_ends_with_one_line_and_code_2(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ablate", EXAMPLE, "--stand-in", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line
