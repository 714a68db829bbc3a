"""Monitor and agent beside somebody else's torchrun job, which knows nothing of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from headway.common.node.testing import wait_until
from headway.common.wire.client import Client
from headway.common.wire.messages.health import Verdict
from headway.common.wire.messages.service import Describe, Description
from headway.health.client import verdicts_of

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total, folder = torch.zeros(8), Path(sys.argv[1])
(folder / f"up-{dist.get_rank()}").touch()
while not total[0]:  # all ranks see the end in the same collective
    total.fill_(float((folder / "fail").exists()))
    dist.all_reduce(total)
    time.sleep(0.05)
if dist.get_rank() == 1:
    said = "[rank1]: RuntimeError: CUDA error: device-side assert triggered"
    print(said, file=sys.stderr, flush=True)
    os._exit(3)
time.sleep(600)
"""
LIMIT_S = 90.0


@dataclass
class Job:
    """The folder of a job, and the commands of docs/howto/health.md beside it."""

    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *words: str | Path, output: str = "daemons.txt") -> subprocess.Popen[bytes]:
        with (self.folder / output).open("ab") as out:
            made = subprocess.Popen(
                [sys.executable, "-m", *map(str, words)],
                stdout=out,
                stderr=out,
                cwd=self.folder,
                start_new_session=True,
            )
        self.started.append(made)
        return made

    def watch(self) -> subprocess.Popen[bytes]:
        """Start monitor and agent; returns the agent."""
        own = ("--run-id", "0badcafe", "--keys", self.folder / "keys")
        monitor = self.folder / "monitor.json"
        self.start(
            "headway.health", "monitor", "--run-dir", self.folder, "--announce", monitor, *own
        )
        return self.start(
            "headway.health", "agent", "--node-file", monitor, "--node", "0", *own,
            "--endpoint", f"ipc://{self.folder}/agent.sock", "--shm-dir", self.folder / "shm",
            "--logs", self.folder / "logs", "--log-pattern", "**/*.log",
            "--kmsg", self.folder / "kmsg",
        )  # fmt: skip

    def torchrun(self) -> subprocess.Popen[bytes]:
        (self.folder / "train.py").write_text(SCRIPT)
        return self.start(
            "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--redirects", "3",
            "--log-dir", self.folder / "logs", self.folder / "train.py", self.folder,
            output="torchrun.txt",
        )  # fmt: skip

    def num_beats(self) -> int:
        with Client(f"ipc://{self.folder}/agent.sock") as client:
            return int(str(client.call(Describe(), Description, timeout_s=20.0).state["num_beats"]))

    def verdicts(self) -> list[Verdict]:
        return verdicts_of(self.folder)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    folder = Path("/tmp") / f"hw-foreign-{os.getpid()}"  # socket paths must be short
    folder.mkdir()
    for name in ("shm", "logs"):
        (folder / name).mkdir()
    (folder / "kmsg").touch()
    made = Job(folder)
    yield made
    for process in made.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    printed = (folder / "daemons.txt").read_text()
    folder.rename(tmp_path / "job")
    assert "Traceback" not in printed, printed


def test_an_agent_reports_what_the_logs_and_the_kernel_say_of_a_torchrun_job(job: Job) -> None:
    agent, torchrun = job.watch(), job.torchrun()
    for rank in range(2):
        wait_until((job.folder / f"up-{rank}").exists, what=f"rank {rank}", timeout_s=LIMIT_S)
    began = job.num_beats()
    wait_until(lambda: job.num_beats() > began + 4, what="beats", timeout_s=LIMIT_S)
    assert job.verdicts() == [], "nothing is wrong yet"

    with (job.folder / "kmsg").open("a") as kernel:
        kernel.write("[ 9.1] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n")
    wait_until(lambda: len(job.verdicts()) == 1, what="the kernel's line", timeout_s=LIMIT_S)
    [lost] = job.verdicts()
    assert lost.node == 0 and "0000:9b:00.0" in lost.remedy, lost

    (job.folder / "fail").touch()
    assert torchrun.wait(LIMIT_S) != 0
    wait_until(lambda: len(job.verdicts()) == 2, what="the rank's line", timeout_s=LIMIT_S)
    own = job.verdicts()[1]
    assert (own.node, own.rank) == (0, 1), own
    assert "/1/stderr.log" in str(own.evidence)
    assert "device-side assert" in str(own.evidence)

    agent.send_signal(signal.SIGTERM)
    assert agent.wait(LIMIT_S) == 0
