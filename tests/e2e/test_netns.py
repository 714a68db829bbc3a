"""What `make run TARGET=netns` starts trains on its own machines, and nothing of them stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId
from headway.common.node.testing import child_environment, wait_until
from headway.console.run import Run
from headway.testkit.machines import Machines
from headway.testkit.machines.small import SMALL

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"
COUNT = 3
LIMIT_S = 150.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if reason := Machines.missing():
        pytest.skip(f"no separate nodes here: {reason}")
    return tmp_path / "machines"


@pytest.fixture
def program(folder: Path, corpus: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """It writes to ``log``; killed at the end, whatever its state."""
    settings = (*SMALL, f"data.path={corpus}", "train.steps=10", "launch.spares=0")
    words = [word for one in settings for word in ("--set", one)]
    options = ["--count", str(COUNT), "--folder", folder, *words]
    command = [sys.executable, "-m", "headway.testkit.machines", TINY, *options]
    with (tmp_path / "log").open("wb") as log:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=child_environment()
        )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@pytest.mark.timeout(300)
def test_the_program_behind_make_run_trains_and_leaves_no_process(
    program: subprocess.Popen[bytes], folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    def first_processes() -> list[int]:
        """Of the machines, the console's too, as they are printed."""
        lines = [line for line in log.read_text().splitlines() if "  nsenter -a -t " in line]
        return [int(line.rpartition(" ")[2]) for line in lines]

    wait_until(
        lambda: len(first_processes()) > COUNT or program.poll() is not None,
        what="the list of machines",
        timeout_s=LIMIT_S,
    )
    spaces = [os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY) for pid in first_processes()]
    try:  # held open, so that the kernel gives their numbers to no others
        inside = {os.fstat(space).st_ino for space in spaces}
        assert len(inside) == COUNT + 1, log.read_text()
        assert _processes_in(inside)
        assert program.wait(LIMIT_S) == 0, log.read_text()
        assert _processes_in(inside) == []
    finally:
        for space in spaces:
            os.close(space)
    assert Run(folder / "disks" / f"node-{COUNT}" / "runs" / "tiny").outcome == "finished"
    assert "finished after step 10/10" in log.read_text()


def _processes_in(spaces: set[int]) -> list[ProcessId]:
    """Those of this host that are in one of these namespaces."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            is_inside = Path(f"/proc/{pid}/ns/pid").stat().st_ino in spaces
        except OSError:  # it has ended
            continue
        if is_inside and (one := ProcessId.of(int(pid))):
            found.append(one)
    return found
