"""Claims: one holder at a time, taken over from one that is gone or will never run again."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError
from headway.common.node import claim as claims
from headway.common.node.claim import ClaimedError, claim, release
from headway.common.node.ring import RingHeldError, RingReader, RingWriter
from headway.common.node.testing import (
    doomed,
    identity,
    python_child,
    read_line,
    send_line,
    wait_until,
)

HOLDER = """
import sys
from pathlib import Path
from headway.common.node.claim import claim, release
claim(Path(sys.argv[1]))
print("claimed", flush=True)
sys.stdin.readline()
release(Path(sys.argv[1]))
print("released", flush=True)
sys.stdin.readline()
"""
RACER = """
import sys
from pathlib import Path
from headway.common.node.claim import ClaimedError, claim
print("up", flush=True)
sys.stdin.readline()
try:
    claim(Path(sys.argv[1]))
    print("claimed", flush=True)
except ClaimedError:
    print("refused", flush=True)
sys.stdin.readline()
"""
LOCKER = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()
"""


def test_a_claim_is_refused_by_the_holder_s_pid_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    with python_child(HOLDER, path) as child:
        assert read_line(child) == "claimed"
        with pytest.raises(ClaimedError, match=f"process {child.pid}") as caught:
            claim(path)
        assert caught.value.holder == identity(child)
        release(path)  # not ours: nothing happens
        with pytest.raises(ClaimedError):
            claim(path)
        send_line(child, "")
        assert read_line(child) == "released"
        claim(path)
        claim(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_dead_holder_is_replaced_and_an_unreadable_record_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    with python_child(HOLDER, path) as child:
        assert read_line(child) == "claimed"
    claim(path)
    path.write_text("garbage")
    claim(path)


def test_of_several_at_once_one_gets_the_claim(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    with (
        python_child(RACER, path) as a,
        python_child(RACER, path) as b,
        python_child(RACER, path) as c,
    ):
        racers = (a, b, c)
        assert [read_line(racer) for racer in racers] == ["up"] * 3
        for racer in racers:
            send_line(racer, "")
        assert sorted(read_line(racer) for racer in racers) == ["claimed", "refused", "refused"]


def test_the_claim_of_a_process_frozen_with_sigkill_pending_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    with python_child(HOLDER, path) as child:
        assert read_line(child) == "claimed"
        try:
            with doomed(child.pid):
                claim(path)
        except PermissionError as error:
            pytest.skip(str(error))


def test_a_file_that_stays_locked_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "claim"
    path.touch()
    monkeypatch.setattr(claims, "LOCK_LIMIT_S", 0.05)
    with python_child(LOCKER, path) as child:
        assert read_line(child) == "locked"
        with pytest.raises(HeadwayError, match=f"{path} has been locked"):
            claim(path)


def test_a_taken_claim_can_be_taken_over_on_a_full_disk(tmp_path: Path) -> None:
    """The record is overwritten in place: nothing is truncated or added."""
    path = tmp_path / "claim"
    claim(path)
    size, inode = path.stat().st_size, path.stat().st_ino
    file = os.open(path, os.O_RDWR)
    os.pwrite(file, b"4194305 1\n".rjust(size), 0)
    os.close(file)
    claim(path)
    assert (path.stat().st_size, path.stat().st_ino) == (size, inode)


RING_USER = """
import sys
from pathlib import Path
from headway.common.node.ring import RingReader, RingWriter
path = Path(sys.argv[1])
writer = RingWriter.create(path, spec=b"", slot_bytes=64, num_slots=2, num_readers=1)
reader = RingReader(path, 0)
print("up", flush=True)
sys.stdin.readline()
"""


def test_both_places_of_a_ring_are_taken_over_from_a_doomed_process(shm: Path) -> None:
    path = shm / "ring-0.bin"
    with python_child(RING_USER, path) as child:
        assert read_line(child) == "up"
        with pytest.raises(HeadwayError, match=f"process {child.pid}"):
            RingWriter.adopt(path)
        with pytest.raises(RingHeldError):
            RingReader(path, 0)
        try:
            with doomed(child.pid):
                writer, reader = RingWriter.adopt(path), RingReader(path, 0)
                slot = writer.reserve()
                assert slot is not None
                slot[:5] = b"again"
                writer.publish()
                assert bytes(reader.get(20.0)[1][:5]) == b"again"
                del slot
                reader.close()
                writer.close()
        except PermissionError as error:
            pytest.skip(str(error))
        wait_until(lambda: child.poll() is not None, what="the end of the old one")
