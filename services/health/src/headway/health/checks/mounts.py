"""Checks that the folders named with ``--mount`` exist, can be written to, and answer in time.

Each folder is probed by a process of its own (``python -m headway.health.checks.mounts FOLDER``):
a call into a mount whose server is gone may never return, and nothing ends it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headway.common.node.process import end_with_parent, ending_with_me
from headway.health.checks.base import CheckSettings, Finding, not_run

COLLECT_S = 1.0


def check(settings: CheckSettings) -> Finding:
    """Probe all folders at the same time."""
    if not settings.mounts:
        return not_run("no folder was named (--mount DIR)")
    until_s = time.monotonic() + settings.mount_answer_s
    probes = {folder: _start(folder) for folder in settings.mounts}
    outcomes = {
        str(folder): _outcome(probe, until_s, settings.mount_answer_s)
        for folder, probe in probes.items()
    }
    return judge(outcomes, settings)


def judge(measured: dict[str, str], _settings: CheckSettings) -> Finding:
    """The finding about folders and what is wrong with each, which is empty if nothing is."""
    troubles = {folder: trouble for folder, trouble in measured.items() if trouble}
    values: dict[str, float | str] = {"folders": len(measured), "bad": len(troubles)}
    if troubles:
        listed = "; ".join(f"{folder} {trouble}" for folder, trouble in troubles.items())
        remedy = "see findmnt and dmesg, mount it again, or drain the node"
        return Finding(False, listed, remedy, values)
    return Finding(True, f"{', '.join(measured)}: can be written to", "", values)


def probe(folder: Path) -> str:
    """What is wrong with a folder, empty if nothing is. May never return."""
    try:
        if not folder.is_dir():
            return "is not there, or is not a folder"
        # a name that no other machine's probe of a shared folder has
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".headway-health-") as file:
            file.write(b"headway")
            file.flush()
            os.fsync(file.fileno())
            read = Path(file.name).read_bytes()
        return "" if read == b"headway" else "returns other bytes than were written"
    except OSError as error:
        return f"cannot be written to: {error.strerror}"


def _start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headway.health.checks.mounts", os.fspath(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ending_with_me(os.environ),
    )


def _outcome(child: subprocess.Popen[str], until_s: float, limit_s: float) -> str:
    """What is wrong; a process that does not end in time is killed, or left if that fails too."""
    try:
        # what it prints fits into the pipe, so it ends without a reader
        child.wait(timeout=max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=COLLECT_S)
        return f"does not answer within {limit_s:g} s"
    output, _ = child.communicate()
    return output.strip() if child.returncode == 0 else f"cannot be probed ({child.returncode})"


if __name__ == "__main__":
    end_with_parent()
    print(probe(Path(sys.argv[1])))
