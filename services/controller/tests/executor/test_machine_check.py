"""An executor checks its machine in a child: what fails, what cannot be checked, what hangs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId, reap_children
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import private_roots, wait_until
from headway.common.wire.messages.driver import NodeCheck
from headway.controller.executor.machine.machine_check import DEADLINE_S, MachineCheck
from headway.health.config import HealthConfig

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


def test_a_check_that_hangs_is_ended_and_has_failed(bench: Bench) -> None:
    log = bench.run.path / "pid"
    check = bench.check(None, "sh", "-c", f"echo $$ > {log}.new; mv {log}.new {log}; sleep 1000")
    check.begin(1)
    wait_until(log.exists, 20.0)
    process = ProcessId.of(int(log.read_text()))
    assert process is not None and process.alive()
    bench.now_s += DEADLINE_S - 1
    assert check.look() == NodeCheck(number=1)
    bench.now_s += 2
    assert finished(check).failed == ("deadline",)
    wait_until(lambda: not process.alive(), 20.0)


def test_the_command_names_the_folders_that_must_answer(bench: Bench) -> None:
    words = bench.check(HealthConfig(check_min_shm_mib=77)).command
    assert words[words.index("--min-shm-mib") + 1] == "77"
    mounts = [words[at + 1] for at, word in enumerate(words) if word == "--mount"]
    assert mounts == [str(bench.run.path), str(bench.run.checkpoints)]
