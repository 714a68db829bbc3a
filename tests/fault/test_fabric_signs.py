"""What the network does to a gloo job is found within seconds, and nothing in a job that is well.

The job is two processes on two nodes of a bed that reduce gradients over the fabric. Where it is
about what is found, their core is wanted by other processes too, since a busy core delays packets.
It is one core for all of them: the others are left to the tests that run at the same time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import wait_until
from headway.testkit.bed import Bed

BUSY = 4
"""On the job's core: as many per core as when the limits of fabric_signs.py were chosen."""
QUIET_S = 12.0
"""How long a job that is well is watched."""
SETTLE = 6
"""Readings after which those of an earlier fault no longer count, see LOSS_WINDOW."""
LIMIT_S = 20.0
FAULT_S = 8.0
"""Twice as long as it takes to be found."""
CORE = max(os.sched_getaffinity(0))
MEGABIT, SHARE, DELAY_MS = 5.0, 0.05, 100.0

RANK = """
import datetime, os, sys, time
import torch, torch.distributed as dist
own, first, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
limit = datetime.timedelta(seconds=600)
store = dist.TCPStore(first, 29555, 2, rank == 0, timeout=limit)
options = dist.ProcessGroupGloo._Options()
options._devices = [dist.ProcessGroupGloo.create_device(hostname=own)]
options._timeout = limit
group = dist.ProcessGroupGloo(store, rank, 2, options)
gradients, loss, weights = torch.ones(250_000), torch.ones(4), torch.ones(300, 300)
sum_up = dist.AllreduceOptions()
print("up", os.getpid(), flush=True)
while True:
    for _ in range(8):
        weights @ weights
    group.allreduce([loss], sum_up).wait()
    group.allreduce([gradients], sum_up).wait()
    print("step", flush=True)
    time.sleep(0.05)
"""
WATCH = """
import json, sys, time
from headway.health.config import HealthConfig
from headway.health.sources.fabric_links import FabricLinks
own, pid = sys.argv[1], int(sys.argv[2])
source = FabricLinks(own, lambda: [pid], HealthConfig())
while True:
    found = [(one.rule, one.name, one.subject, one.line) for one in source.read()]
    print(json.dumps(found), flush=True)
    time.sleep(1.0)
"""
INJECT = """
import sys, time
from pathlib import Path
from headway.common.errors import InputError
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import RunDir
from headway.controller.faults.faults import Places, inject
fault, own, seconds = sys.argv[1:]
run = RunDir.create(Path("run-" + fault), run_id="00c0ffee")
try:
    places = Places(run.path.resolve(), Path.cwd(), Path.cwd(), own)
    print("done:", inject(fault, [ProcessId.current()], places, float(seconds)), flush=True)
    time.sleep(float(seconds))
    print("over", flush=True)
except InputError as error:
    print("refused:", error, error.remedy, flush=True)
"""

pytestmark = pytest.mark.timeout(300)


class Job:
    """Two ranks that train, each beside a process that reads what an agent does."""

    def __init__(self, bed: Bed, folder: Path) -> None:
        self.bed, self._folder = bed, folder
        self.addresses = [node.fabric_address for node in bed.nodes]
        ranks = [
            self._start("rank", node, RANK, self.addresses[node], self.addresses[0], str(node))
            for node in (0, 1)
        ]
        self._ranks, self._watches = ranks, list[Path]()
        for node, log in enumerate(ranks):
            wait_until(lambda log=log: "up" in _text(log), what="the ranks", timeout_s=120)
            pid = _text(log).split()[_text(log).split().index("up") + 1]
            self._watches.append(self._start("watch", node, WATCH, self.addresses[node], pid))

    def _start(self, name: str, node: int, code: str, *words: str) -> Path:
        log = self._folder / f"{name}-{node}.log"
        process = self.bed.node(node).start([sys.executable, "-c", code, *words], log=log)
        os.sched_setaffinity(process.pid, {CORE})
        return log

    def inject(self, fault: str, seconds: float) -> Path:
        """Have ``headway inject`` break node 0's network; returns the file with its answer."""
        return self._start(f"inject-{fault}", 0, INJECT, fault, self.addresses[0], str(seconds))

    def num_readings(self, node: int) -> int:
        return _text(self._watches[node]).count("\n")

    def num_steps(self) -> int:
        return _text(self._ranks[0]).count("step")

    def found(self, node: int, since: int = 0) -> list[list[str]]:
        """Rule, name, subject and line of what was found after so many readings."""
        lines = _text(self._watches[node]).rpartition("\n")[0].splitlines()
        return [found for line in lines[since:] for found in json.loads(line)]


def _text(log: Path) -> str:
    return log.read_text() if log.exists() else ""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    if reason := Bed.missing():
        pytest.skip(f"no separate nodes here: {reason}")
    with Bed(tmp_path_factory.mktemp("fabric"), nodes=2) as bed:
        yield Job(bed, tmp_path_factory.mktemp("logs"))


@pytest.fixture
def busy() -> Iterator[None]:
    """The job's core is wanted by others, once the job is up: its scope is wider than this."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(BUSY)]
    try:
        for one in others:
            os.sched_setaffinity(one.pid, {CORE})
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


def _settle(job: Job) -> int:
    """Wait until both nodes have read the ways as they are usually; returns how often."""
    job.bed.heal()
    steps, readings = job.num_steps(), job.num_readings(0)
    wait_until(lambda: job.num_steps() > steps + 3, what="steps", timeout_s=60)
    wait_until(lambda: job.num_readings(0) > readings + SETTLE, what="readings", timeout_s=60)
    return min(job.num_readings(0), job.num_readings(1))


@pytest.mark.usefixtures("busy")
def test_nothing_is_found_while_a_job_on_busy_cores_is_well(job: Job) -> None:
    _settle(job)
    readings = job.num_readings(0)
    wait_until(lambda: job.num_readings(0) > readings + QUIET_S, what="readings", timeout_s=60)
    assert job.found(0) == job.found(1) == []


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("strike", "rule"),
    [
        (lambda bed: bed.delay(0, 1, DELAY_MS), "fabric_delay"),
        (lambda bed: bed.lose(1, SHARE), "fabric_loss"),
        (lambda bed: bed.limit(1, MEGABIT), "fabric_slow"),
        (lambda bed: bed.isolate(1, plane="fabric"), "fabric_stop"),
    ],
    ids=["delay", "loss", "bandwidth", "partition"],
)
def test_a_fault_of_the_network_names_the_peer(
    job: Job, strike: Callable[[Bed], None], rule: str
) -> None:
    since, began_s = _settle(job), time.monotonic()
    strike(job.bed)
    # where all cores are busy, a delay that begins is a moment without any answer at first, and
    # what delays the frames, a process of its own, may lose some; a narrow link drops what its
    # queue does not hold
    also = {"fabric_delay": {"fabric_stop", "fabric_loss"}, "fabric_slow": {"fabric_loss"}}
    expected = {rule} | also.get(rule, set())
    wait_until(
        lambda: any(found[0] == rule for node in (0, 1) for found in job.found(node, since)),
        what=rule,
        timeout_s=LIMIT_S,
    )
    print(
        f"{rule} after {time.monotonic() - began_s:.1f} s", job.found(0, since), job.found(1, since)
    )
    for node in (0, 1):
        for found, name, subject, line in job.found(node, since):
            assert found in expected, line
            assert (name, subject) == (job.addresses[1 - node], "peer"), line
            assert job.addresses[node] in line


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("bandwidth", "fabric_slow"),
        ("loss", "fabric_loss"),
        ("delay", "fabric_delay"),
        ("partition", "fabric_stop"),
    ],
)
def test_what_inject_does_to_the_network_is_found_or_refused_by_name(
    job: Job, fault: str, rule: str
) -> None:
    since = _settle(job)
    log = job.inject(fault, FAULT_S)
    wait_until(lambda: "\n" in _text(log), what="an answer", timeout_s=LIMIT_S)
    if _text(log).startswith("refused"):
        assert f"'{fault}' cannot be done" in _text(log) and "CONFIG_NET_" in _text(log)
        assert job.found(0, since) == job.found(1, since) == []
        return
    wait_until(lambda: any(job.found(node, since) for node in (0, 1)), what=rule, timeout_s=LIMIT_S)
    for node in (0, 1):
        for found, name, _, line in job.found(node, since):
            assert (found, name) == (rule, job.addresses[1 - node]), line
    wait_until(lambda: "over" in _text(log), what="the end of the fault", timeout_s=LIMIT_S)
    if fault != "partition":  # after which gloo may have given its connections up
        steps = job.num_steps()
        wait_until(lambda: job.num_steps() > steps + 20, what="steps after it", timeout_s=60)
