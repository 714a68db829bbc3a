"""The batch script of a job: it keeps the job as long as the run lives, and no longer."""

from __future__ import annotations

import dataclasses
import errno
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId
from headway.common.node.testing import wait_until
from headway.launch.engines.slurm import hold
from headway.launch.lease.base import Holder, LeaseTerm, LeaseView
from headway.launch.lease.file import FileLease


def _holder() -> Holder:
    me = ProcessId.current()
    return Holder(1, 0, me.pid, me.start_ticks)


@pytest.fixture
def signals() -> Iterator[None]:
    """``hold`` ignores signals in its own process."""
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_a_job_is_held_while_a_driver_leads_and_for_a_while_after(tmp_path: Path) -> None:
    lease = FileLease(tmp_path)
    lease.claim(0)
    tenure, is_over = LeaseTerm(lease, _holder()), threading.Event()

    def lead() -> None:
        for _ in range(20):
            tenure.renew()
            time.sleep(0.05)
        is_over.set()

    thread = threading.Thread(target=lead)
    thread.start()
    hold.hold(lease, no_driver_s=0.5, look_s=0.05)
    assert is_over.is_set()
    thread.join()


@pytest.mark.usefixtures("signals")
def test_a_file_system_that_fails_for_a_moment_ends_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, looks = FileLease(tmp_path), []

    def look() -> LeaseView:
        looks.append(len(looks))
        if len(looks) < 5:
            raise OSError(errno.ESTALE, "Stale file handle")
        return LeaseView(1, None)

    monkeypatch.setattr(lease, "look", look)
    hold.hold(lease, no_driver_s=0.3, look_s=0.01)
    assert len(looks) > 5, "and without a driver it ends all the same"


@pytest.mark.usefixtures("signals")
def test_a_job_outlasts_a_file_system_that_only_its_own_machine_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, looks = FileLease(tmp_path), []

    def look() -> LeaseView:
        looks.append(len(looks))
        if len(looks) in range(2, 60):  # far longer than a job is held without a driver
            raise OSError(errno.ESTALE, "Stale file handle")
        return LeaseView(1, None)

    monkeypatch.setattr(lease, "look", look)
    hold.hold(lease, no_driver_s=0.05, look_s=0.01)
    assert len(looks) >= 60


@pytest.mark.usefixtures("signals")
def test_a_job_ends_with_its_run_but_not_for_the_driver_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "OVER_S", 0.01)
    lease = FileLease(tmp_path)
    lease.claim(0)
    _finish(lease, 1)
    held = threading.Thread(target=hold.hold, args=(lease, 600.0, 0.05), daemon=True)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # it runs on a thread here
    held.start()
    held.join(0.5)
    assert held.is_alive()
    lease.claim(1)
    _finish(lease, 2)
    held.join(20.0)
    assert not held.is_alive()


@pytest.mark.usefixtures("signals")
def test_a_further_job_that_begins_when_the_run_is_over_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run is resumed in it, as in an allocation."""
    monkeypatch.setattr(hold, "OVER_S", 0.01)
    lease = FileLease(tmp_path)
    lease.claim(0)
    _finish(lease, 1)
    hold.hold(lease, 600.0, 0.05, is_further=True)


def _finish(lease: FileLease, epoch: int) -> None:
    tenure = LeaseTerm(lease, dataclasses.replace(_holder(), epoch=epoch))
    tenure.finish("finished")
    tenure.renew()


def test_the_batch_script_is_a_program_that_ignores_what_nodes_act_on(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "headway.launch.engines.slurm.hold", str(tmp_path)]
    with subprocess.Popen(words) as script:
        status = Path(f"/proc/{script.pid}/status")
        wait_until(lambda: _ignores(status, signal.SIGTERM, signal.SIGUSR1), what="its handlers")
        script.send_signal(signal.SIGTERM)
        script.send_signal(signal.SIGUSR1)
        assert script.poll() is None
        script.kill()


def _ignores(status: Path, *numbers: signal.Signals) -> bool:
    [line] = [one for one in status.read_text().splitlines() if one.startswith("SigIgn:")]
    mask = int(line.split()[1], 16)
    return all(mask >> (number - 1) & 1 for number in numbers)
