"""An executor checks its machine in a child: what fails, what cannot be checked, what hangs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId, reap_children
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import child_environment, private_roots, wait_until
from headway.common.wire.messages.driver import NodeCheck
from headway.controller.executor.machine.machine_check import MachineCheck
from headway.health.config import HealthConfig
from headway.health.runner import SUITES

FAILING = (
    '{"results": [{"name": "clock", "ok": true, "message": "x"},'
    ' {"name": "disk", "ok": false, "message": "slow"}]}'
)


@dataclass
class Bench:
    run: RunDir
    paths: NodePaths
    now_s: float = 0.0

    def check(self, limits: HealthConfig | None = None, *words: str) -> MachineCheck:
        """One that runs ``words`` instead of the command, if there are any."""
        kind = type("Played", (MachineCheck,), {"command": list(words)}) if words else MachineCheck
        made = kind(self.run, limits or HealthConfig(), self.paths, lambda: self.now_s)
        assert isinstance(made, MachineCheck)
        return made


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with private_roots():
        run = RunDir.create(tmp_path / "run", run_id=new_run_id())
        yield Bench(run, NodePaths(run.run_id, 0).create())


def finished(check: MachineCheck, limit_s: float = 20.0) -> NodeCheck:
    def is_done() -> bool:
        reap_children()
        newest = check.look()
        return newest is not None and newest.is_done

    wait_until(is_done, limit_s, "the check's end")
    newest = check.look()
    assert newest is not None
    return newest


def test_a_limit_that_cannot_hold_fails_by_name_in_the_real_check(bench: Bench) -> None:
    limits = HealthConfig(check_min_shm_mib=1 << 40, check_deadline_s=120.0)
    check = bench.check(limits)
    assert check.look() is None
    check.begin(3)
    assert check.look() == NodeCheck(number=3)
    found = finished(check, 180.0)
    assert (found.number, found.failed) == (3, ("shm",))
    assert "MiB free, below" in found.reason


def test_a_check_is_begun_once_and_a_later_one_after_it(bench: Bench) -> None:
    log = bench.run.path / "begun"
    check = bench.check(None, "sh", "-c", f"echo x >> {log}; echo '{FAILING}'")
    for _ in range(3):
        check.begin(1)
    found = finished(check)
    assert (found.number, found.failed, found.reason) == (1, ("disk",), "disk: slow")
    check.begin(1)
    check.begin(0)
    assert finished(check).number == 1
    check.begin(2)
    assert finished(check).number == 2
    assert log.read_text() == "x\nx\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("sh", "-c", "echo ImportError: no module; exit 1"), "no result: ImportError: no module"),
        (("sh", "-c", "exit 3"), "no result: "),
        (("sh", "-c", "echo '{\"results\": 5}'"), "no result: "),
        (("sh", "-c", "printf '\\377\\376'"), "no result: "),
        (("/no/such/program",), "could not be started"),
    ],
)
def test_what_cannot_be_checked_has_not_failed(
    bench: Bench, words: tuple[str, ...], reason: str
) -> None:
    check = bench.check(None, *words)
    check.begin(1)
    found = finished(check)
    assert found.failed == () and reason in found.reason


def hanging(bench: Bench, limits: HealthConfig | None = None) -> tuple[MachineCheck, ProcessId]:
    """A check that hangs, and its process; ``begun`` has a line for each."""
    log, begun = bench.run.path / "pid", bench.run.path / "begun"
    words = f"echo x >> {begun}; echo $$ > {log}.new; mv {log}.new {log}; sleep 1000"
    check = bench.check(limits, "sh", "-c", words)
    check.begin(1)
    wait_until(log.exists, 20.0)
    process = ProcessId.of(int(log.read_text()))
    assert process is not None and process.alive()
    return check, process


@pytest.mark.parametrize("deadline_s", [20.0, 120.0])
def test_a_check_that_hangs_is_ended_after_the_limits_of_all_its_checks(
    bench: Bench, deadline_s: float
) -> None:
    limits = HealthConfig(check_deadline_s=deadline_s)
    check, process = hanging(bench, limits)
    assert limits.quick_suite_s > len(SUITES["quick"]) * deadline_s
    bench.now_s += limits.quick_suite_s - 1
    assert check.look() == NodeCheck(number=1)
    bench.now_s += 2
    assert finished(check).failed == ("deadline",)
    wait_until(lambda: not process.alive(), 20.0)


def test_a_check_ends_without_a_result_when_its_node_is_given_ranks(bench: Bench) -> None:
    check, process = hanging(bench)
    check.give_way()
    wait_until(lambda: not process.alive(), 20.0)
    found = check.look()
    assert found is not None and (found.number, found.is_done, found.failed) == (1, True, ())
    assert "given ranks" in found.reason
    done = bench.check(None, "echo", FAILING)
    done.begin(1)
    before = finished(done)
    done.give_way()
    assert done.look() == before, "what was found stays"


def test_a_new_check_does_not_count_what_began_before_it(bench: Bench) -> None:
    check, process = hanging(bench)
    check.begin(2)
    wait_until(lambda: not process.alive(), 20.0)
    assert check.look() == NodeCheck(number=2)
    begun = bench.run.path / "begun"
    wait_until(lambda: begun.read_text() == "x\nx\n", 20.0)
    check.close()


EXECUTOR = """
import sys
from pathlib import Path
from headway.common.node.run_dir import NodePaths, RunDir
from headway.controller.executor.machine.machine_check import MachineCheck
from headway.health.config import HealthConfig
run = RunDir(Path(sys.argv[1]))
check = MachineCheck(run, HealthConfig(check_deadline_s=1000.0), NodePaths(run.run_id, 0))
check.begin(1)
print(check._process.pid, flush=True)
sys.stdin.read()
"""


def test_a_check_ends_with_its_executor_and_so_do_its_own_processes(bench: Bench) -> None:
    """The suite waits for a check that hangs, here since it is stopped."""
    with subprocess.Popen(
        [sys.executable, "-c", EXECUTOR, str(bench.run.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    ) as executor:
        try:
            assert executor.stdout is not None
            pid = next(line for line in executor.stdout if line.strip().isdigit())
            suite = ProcessId.of(int(pid))
            assert suite is not None
            stopped: list[ProcessId] = []
            wait_until(lambda: is_one_stopped(suite, stopped), 120.0, "a check to stop")
        finally:
            executor.kill()
    wait_until(lambda: not suite.alive(), 20.0, "the suite's end")
    wait_until(lambda: not stopped[0].alive(), 20.0, "the end of its check")


def is_one_stopped(suite: ProcessId, stopped: list[ProcessId]) -> bool:
    """Stop the check that the suite runs, once it ends with the suite; add it to ``stopped``."""
    children = Path(f"/proc/{suite.pid}/task/{suite.pid}/children").read_text().split()
    for child in filter(None, (ProcessId.of(int(pid)) for pid in children)):
        words = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        has_begun = b"headway.health.runner" in words and child.age_s() > 0.5
        if (
            has_begun
            and has_read_settings(child.pid)
            and child.kill(signal.SIGSTOP)
            and child.state() == "T"
        ):
            stopped.append(child)
    return bool(stopped)


def has_read_settings(pid: int) -> bool:
    """Whether nothing is left in the pipe that a check reads after it has asked for its end."""
    with contextlib.suppress(OSError):
        pipe = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
        try:
            waiting = fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4)
        finally:
            os.close(pipe)
        return int.from_bytes(waiting, sys.byteorder) == 0
    return False


def test_the_command_names_the_folders_that_must_answer(bench: Bench) -> None:
    words = bench.check(HealthConfig(check_min_shm_mib=77)).command
    assert words[words.index("--min-shm-mib") + 1] == "77"
    mounts = [words[at + 1] for at, word in enumerate(words) if word == "--mount"]
    assert mounts == [str(bench.run.path), str(bench.run.checkpoints)]
    assert words[words.index("--disk") + 1] == str(bench.run.checkpoints)
