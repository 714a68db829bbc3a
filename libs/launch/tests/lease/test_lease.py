"""The lease of a run: one holder an epoch, fenced by its successor, renewed by progress."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId
from headway.common.polling import wait_until
from headway.launch.lease.base import (
    Holder,
    Lease,
    LeaseTerm,
    LeaseView,
    LeaseWatch,
    SupersededError,
    is_led,
)
from headway.launch.lease.choose import lease_of
from headway.launch.lease.file import FileLease
from headway.launch.lease.kubernetes import LeaseName
from headway.testkit.played.kubernetes_api import KubernetesApi
from structlog.testing import capture_logs

MakeLease = Callable[..., Lease]


@pytest.fixture(params=["file", "api"])
def make_lease(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeLease]:
    """Another process's view of the run's lease; takes what fences a holder elsewhere."""

    def make(fence_elsewhere: Callable[[Holder], bool] = lambda _: True) -> Lease:
        return lease_of(tmp_path, fence_elsewhere)

    if request.param == "file":
        yield make
        return
    with KubernetesApi(tmp_path) as api:
        api.add("tiny")
        LeaseName(api.url, api.namespace, "tiny", str(api.account)).save(tmp_path)
        yield make


def _holder(epoch: int, process: ProcessId | None = None) -> Holder:
    process = process or ProcessId.current()
    return Holder(epoch, 0, process.pid, process.start_ticks, "tcp://127.0.0.1:1", "key")


def test_of_many_claimants_one_gets_the_epoch(make_lease: MakeLease) -> None:
    leases = [make_lease() for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        for after in range(5):
            found = list(pool.map(lambda lease, epoch=after: lease.claim(epoch), leases))
            won = [epoch for epoch in found if epoch is not None]
            assert won == [after + 1]
    assert leases[0].look() == LeaseView(5, None)


def test_a_claim_between_look_and_claim_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, look = FileLease(tmp_path), FileLease._claims

    def looks_before_another_claims(self: FileLease) -> dict[int, Path]:
        found = look(self)
        monkeypatch.setattr(FileLease, "_claims", look)
        assert FileLease(tmp_path).claim(0) == 1
        return found

    monkeypatch.setattr(FileLease, "_claims", looks_before_another_claims)
    assert late.claim(0) is None


def test_a_record_tells_who_leads(make_lease: MakeLease) -> None:
    lease = make_lease()
    assert lease.claim(0) == 1
    assert lease.look().is_starting
    lease.publish(_holder(1))
    assert lease.look() == make_lease().look() == LeaseView(1, _holder(1))


def test_the_files_of_a_lease_are_private(tmp_path: Path) -> None:
    lease = FileLease(tmp_path)
    assert lease.claim(0) == 1
    lease.publish(_holder(1))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_superseded_holder_learns_it_at_its_next_renewal(make_lease: MakeLease) -> None:
    lease = make_lease()
    assert lease.claim(0) == 1
    tenure = LeaseTerm(lease, _holder(1))
    tenure.renew()
    assert make_lease().claim(1) == 2
    with pytest.raises(SupersededError, match="epoch 2 was claimed"):
        tenure.renew()
    lease.publish(_holder(2))
    found = lease.look().holder
    assert found is not None and found.epoch == 2


def test_a_torn_record_is_read_again_and_then_shows_no_holder(tmp_path: Path) -> None:
    lease = FileLease(tmp_path)
    lease.claim(0)
    lease.publish(_holder(1))
    row = json.loads((tmp_path / "driver.json").read_text())
    (tmp_path / "driver.json").write_text(json.dumps({**row, "end": row["beat"] + 1}))
    assert lease.look() == LeaseView(1, None)


@pytest.mark.parametrize("behind", [b"}", b"x" * 5000, b"\xff\x00\n{"], ids=["}", "x", "binary"])
def test_what_is_behind_a_record_is_ignored_and_cut_off(tmp_path: Path, behind: bytes) -> None:
    lease, record = FileLease(tmp_path), tmp_path / "driver.json"
    assert lease.claim(0) == 1
    lease.publish(_holder(1))
    size = record.stat().st_size
    with record.open("ab") as file:
        file.write(behind)
    assert lease.look() == LeaseView(1, _holder(1))
    lease.publish(_holder(1))
    assert record.stat().st_size == size
    assert lease.look() == LeaseView(1, _holder(1))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xa5" * 2048,
        b"[" * 5000,
        b"null",
        b'{"epoch": 1}',
        json.dumps({**asdict(_holder(1)), "epoch": "1", "end": 0}).encode(),
        json.dumps({**asdict(_holder(1)), "epoch": 10**30, "end": 0}).encode(),
        json.dumps({**asdict(_holder(1)), "pid": 2**40, "end": 0}).encode(),
    ],
    ids=range(8),
)
def test_a_damaged_record_is_absent_until_it_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr("headway.launch.lease.file._READ_TRIES", 2)
    lease = FileLease(tmp_path)
    assert lease.claim(0) == 1 and lease.claim(1) == 2
    lease.publish(_holder(2))
    (tmp_path / "driver.json").write_bytes(content)
    assert lease.look() == LeaseView(2, None), "the epoch does not go back"
    lease.publish(_holder(2))
    assert lease.look() == LeaseView(2, _holder(2))


@pytest.mark.parametrize(
    "number", ["9" * 30, str(2**63), str(2**53 + 1), str(2**53), "5000", "1000"]
)
def test_a_stray_claim_is_ignored_and_set_aside_by_the_next_claimant(
    tmp_path: Path, number: str
) -> None:
    lease = FileLease(tmp_path)
    assert lease.claim(0) == 1
    (tmp_path / f"driver.claim-{number}").touch()
    lease.publish(_holder(1))
    assert lease.look() == LeaseView(1, _holder(1))
    with capture_logs() as logs:
        assert lease.claim(1) == 2
    assert sorted(path.name for path in tmp_path.glob("driver.*-*")) == [
        "driver.claim-2",
        f"driver.stray-{number}",
    ]
    assert [one["file"] for one in logs] == [str(tmp_path / f"driver.stray-{number}")]


@pytest.mark.parametrize("first", [2**53, 2**53 + 1, 10**30])
def test_neighbours_that_no_record_could_name_are_strays(tmp_path: Path, first: int) -> None:
    lease = FileLease(tmp_path)
    for number in (first + 1, first + 2):
        (tmp_path / f"driver.claim-{number}").touch()
    assert lease.look() == LeaseView(0, None)
    assert lease.claim(0) == 1
    lease.publish(_holder(1))
    assert lease.look() == LeaseView(1, _holder(1))
    assert len(list(tmp_path.glob("driver.stray-*"))) == 2


@pytest.mark.parametrize("number", [1234, 1235])
def test_a_single_claim_of_an_older_version_counts_beside_its_record(
    tmp_path: Path, number: int
) -> None:
    """Its driver leads, or is about to."""
    lease = FileLease(tmp_path)
    lease.publish(_holder(1234))
    (tmp_path / f"driver.claim-{number}").touch()
    assert lease.look() == LeaseView(number, _holder(1234))
    assert lease.claim(number - 1) is None, "it is taken"
    assert lease.claim(number) == number + 1 and not list(tmp_path.glob("driver.stray-*"))
    with pytest.raises(SupersededError):
        lease.publish(_holder(number))


@pytest.mark.parametrize("after", [998, 999, 1000, 1001, 5000])
def test_epochs_go_on_beyond_the_one_from_which_claims_are_in_pairs(
    tmp_path: Path, after: int
) -> None:
    lease = FileLease(tmp_path)
    for epoch in range(after, after + 4):
        assert lease.claim(epoch) == epoch + 1
        assert FileLease(tmp_path).claim(epoch) is None
        assert lease.look() == LeaseView(epoch + 1, None)
    lease.publish(_holder(after + 4))
    assert lease.look() == LeaseView(after + 4, _holder(after + 4))
    (tmp_path / "driver.claim-9000").touch()
    assert lease.claim(after + 4) == after + 5
    assert len(list(tmp_path.glob("driver.claim-*"))) <= 2
    with pytest.raises(SupersededError):
        lease.publish(_holder(after + 4))


def test_a_stray_claim_that_could_be_a_drivers_is_named_by_the_driver_that_it_ends(
    tmp_path: Path,
) -> None:
    lease = FileLease(tmp_path)
    assert lease.claim(2) == 3
    (tmp_path / "driver.claim-999").touch()
    with capture_logs() as logs, pytest.raises(SupersededError, match="epoch 999 was claimed"):
        lease.publish(_holder(3))
    assert [one["file"] for one in logs] == [str(tmp_path / "driver.claim-999")]
    assert lease.claim(999) == 1000 and lease.look() == LeaseView(1000, None)
    assert lease.claim(1000) == 1001 and lease.look() == LeaseView(1001, None)


def test_a_record_that_cannot_be_read_is_no_lease_without_a_holder(tmp_path: Path) -> None:
    lease = FileLease(tmp_path)
    assert lease.claim(0) == 1
    (tmp_path / "driver.json").mkdir()
    with pytest.raises(IsADirectoryError):
        lease.look()


def test_a_folder_that_cannot_be_listed_is_no_lease_without_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = FileLease(tmp_path)
    assert lease.claim(0) == 1 and lease.claim(1) == 2
    assert lease.look() == LeaseView(2, None), "the claim before it was removed"

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        for name in ("listdir", "scandir"):
            patch.setattr(os, name, refuse)
        acts: list[Callable[[], object]] = [
            lease.look, lambda: lease.claim(0), lambda: lease.publish(_holder(1))
        ]  # fmt: skip
        for act in acts:
            with pytest.raises(PermissionError):
                act()
    assert not (tmp_path / "driver.json").exists()
    assert lease.look() == LeaseView(2, None)


def test_a_fenced_holder_is_dead_even_if_it_was_stopped(make_lease: MakeLease) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = ProcessId.of(child.pid)
    assert process is not None
    process.kill(signal.SIGSTOP)
    assert make_lease().fence(_holder(1, process))
    assert process.is_terminating()
    assert child.wait(10) == -signal.SIGKILL
    assert make_lease().has_ended(_holder(1, process))


def test_a_holder_is_stale_by_its_observers_clock_and_not_for_the_observers_own_stall() -> None:
    watch, view = LeaseWatch(longest_gap_s=1.0), LeaseView(1, _holder(1))
    assert watch.see(view, 0.0) == 0.0
    assert watch.see(view, 0.5) == 0.5
    assert watch.see(view, 100.0) == 1.5  # 99.5 s in which the observer itself stood still
    assert watch.see(LeaseView(1, Holder(1, 0, 1, 1, beat=7)), 100.1) == 0.0
    assert watch.see(LeaseView(2, Holder(1, 0, 1, 1, beat=7)), 100.2) == 0.0


def test_each_renewal_is_seen(make_lease: MakeLease) -> None:
    lease = make_lease()
    lease.claim(0)
    tenure = LeaseTerm(lease, _holder(1))
    beats = []
    for _ in range(3):
        tenure.renew()
        holder = lease.look().holder
        assert holder is not None
        beats.append(holder.beat)
        time.sleep(0.01)
    assert beats == [1, 2, 3]


def _elsewhere(epoch: int, beat: int = 0) -> Holder:
    return Holder(epoch, 0, os.getpid(), 1, "tcp://10.0.0.1:1", "key", beat, space="another boot")


def test_a_holder_on_another_machine_is_never_looked_up_here(make_lease: MakeLease) -> None:
    asked: list[Holder] = []
    lease = make_lease(lambda holder: asked.append(holder) is None)
    holder = _elsewhere(1)
    assert not lease.has_ended(holder), "its pid means nothing here"
    assert lease.fence(holder) and asked == [holder]
    assert ProcessId.current().alive()


def test_a_record_of_an_older_version_is_one_of_this_machine(tmp_path: Path) -> None:
    row = asdict(_holder(1))
    for name in ("space", "join_endpoint", "has_resigned"):
        del row[name]
    (tmp_path / "driver.json").write_text(json.dumps({**row, "end": row["beat"]}))
    found = FileLease(tmp_path).look().holder
    assert found == _holder(1) and found.is_here


def test_who_leads_elsewhere_shows_it_by_renewals(make_lease: MakeLease) -> None:
    lease = make_lease()
    assert not is_led(lease, 0.05), "nobody does"
    lease.publish(_holder(1))
    assert is_led(lease, 0.0), "this process does"
    lease.publish(_elsewhere(1))
    assert not is_led(lease, 0.2)
    with ThreadPoolExecutor(1) as pool:
        led = pool.submit(is_led, lease, 30.0)
        beat = 1
        while not led.done():
            lease.publish(_elsewhere(1, beat := beat + 1))
        assert led.result()


def test_who_resigns_says_so(make_lease: MakeLease) -> None:
    lease = make_lease()
    lease.claim(0)
    tenure = LeaseTerm(lease, _holder(1))
    tenure.renew()
    tenure.resign()
    found = lease.look().holder
    assert found is not None and found.has_resigned


def test_a_renewal_under_way_does_not_undo_a_resignation(tmp_path: Path) -> None:
    lease = _SlowLease(tmp_path)
    assert lease.claim(0) == 1
    tenure = LeaseTerm(lease, _holder(1))
    with ThreadPoolExecutor(2) as pool:
        renewal = pool.submit(tenure.renew)
        assert lease.is_publishing.wait(30.0)
        resignation = pool.submit(tenure.resign)
        wait_until(resignation.done, 0.2)  # it must not get ahead
        lease.may_publish.set()
        renewal.result(30.0)
        resignation.result(30.0)
    found = lease.look().holder
    assert found is not None and found.has_resigned


class _SlowLease(FileLease):
    """The first record is held up on its way to the file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_publishing, self.may_publish = threading.Event(), threading.Event()

    def publish(self, me: Holder) -> None:
        if not self.is_publishing.is_set():
            self.is_publishing.set()
            assert self.may_publish.wait(30.0)
        super().publish(me)
