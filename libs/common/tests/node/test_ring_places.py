"""Who holds a place of a ring: one process per number, a dead one's heir, and nobody twice."""

from __future__ import annotations

import gc
import os
import struct
import warnings
from pathlib import Path

import pytest
from headway.common.errors import CorruptError
from headway.common.node.ring import RingHeldError, RingReader, RingWriter
from headway.common.node.testing import no_leaks, python_child, read_line

READ = """
import os, sys
from pathlib import Path
from headway.common.node.ring import RingReader
reader = RingReader(Path(sys.argv[1]), int(sys.argv[2]))
seq, slot = reader.get(20.0)
reader.release(seq)
print("released", seq, flush=True)
sys.stdin.readline()
"""


def make(path: Path, *, num_readers: int = 1, num_slots: int = 4) -> RingWriter:
    writer = RingWriter.create(
        path,
        spec=b"s",
        slot_bytes=64,
        num_slots=num_slots,
        num_readers=num_readers,
        slot_format=3,
    )
    while writer.reserve() is not None:
        writer.publish()
    return writer


def test_a_number_that_a_living_process_holds_is_refused_by_its_pid(shm: Path) -> None:
    make(shm / "r")
    with python_child(READ, shm / "r", 0) as child:
        assert read_line(child) == "released 0"
        with pytest.raises(RingHeldError, match=rf"reader 0 .* is process {child.pid}; close"):
            RingReader(shm / "r", 0)


def test_a_number_is_refused_to_a_second_reader_of_the_same_process(shm: Path) -> None:
    make(shm / "r", num_readers=2)
    first = RingReader(shm / "r", 0)
    with pytest.raises(RingHeldError, match=f"process {os.getpid()}, this one"):
        RingReader(shm / "r", 0)
    RingReader(shm / "r", 1).close()
    first.close()
    RingReader(shm / "r", 0).close()


def test_the_place_of_a_killed_reader_is_taken_over_where_it_stood(shm: Path) -> None:
    make(shm / "r")
    with python_child(READ, shm / "r", 0) as child:
        assert read_line(child) == "released 0"
        child.kill()
        child.wait()
        heir = RingReader(shm / "r", 0)
    assert (heir.tail, heir.holder.pid) == (1, os.getpid())
    assert heir.get(5.0)[0] == 1


def test_a_reader_that_nobody_refers_to_any_more_gives_its_place_up(shm: Path) -> None:
    make(shm / "r")
    reader = RingReader(shm / "r", 0)
    del reader
    gc.collect()
    RingReader(shm / "r", 0).close()


def test_a_forked_child_gives_up_nothing_of_its_parents(shm: Path) -> None:
    make(shm / "r")
    reader = RingReader(shm / "r", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads: the child uses none of them
        child = os.fork()
    if not child:
        reader.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert reader.holder.pid == os.getpid()
    with pytest.raises(RingHeldError):
        RingReader(shm / "r", 0)


def test_the_last_reader_to_leave_knows_it_and_the_ring_is_removed_only_then(shm: Path) -> None:
    writer = make(shm / "r", num_readers=2)
    first = RingReader(shm / "r", 0)
    assert not first.leave()  # reader 1 has not come yet
    second = RingReader(shm / "r", 1)
    assert not writer.unlink_if_left()
    again = RingReader(shm / "r", 0)
    assert not second.leave()
    assert not writer.unlink_if_left()
    assert again.leave() and not again.leave()
    assert writer.all_left() and writer.unlink_if_left() and not writer.unlink_if_left()
    with pytest.raises(FileNotFoundError):
        RingReader(shm / "r", 0)


def test_leaving_a_ring_that_was_removed_is_no_error(shm: Path) -> None:
    writer = make(shm / "r")
    reader = RingReader(shm / "r", 0)
    writer.unlink()
    assert not reader.leave()
    reader.close()


WORDS = {"slot_bytes": 8, "num_slots": 9, "num_readers": 10, "spec size": 11}


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("value", [0, 1 << 40, (1 << 64) - 1])
def test_sizes_that_no_ring_has_are_damage(shm: Path, name: str, value: int) -> None:
    make(shm / "r").close()
    raw = bytearray((shm / "r").read_bytes())
    struct.pack_into("<Q", raw, 8 * WORDS[name], value)
    (shm / "r").write_bytes(raw)
    is_possible = (name, value) in {("slot_bytes", 17), ("spec size", 0), ("spec size", 17)}
    for open_ring in (RingWriter.adopt, lambda path: RingReader(path, 0)):
        if is_possible:
            open_ring(shm / "r").close()
            continue
        with no_leaks(shm), pytest.raises(CorruptError, match=r"which no ring|too short"):
            open_ring(shm / "r")


def test_a_file_without_room_for_a_header_is_damage(shm: Path) -> None:
    make(shm / "r").close()
    raw = bytearray((shm / "r").read_bytes()[:128])
    struct.pack_into("<Q", raw, 16, len(raw))
    (shm / "r").write_bytes(raw)
    with pytest.raises(CorruptError, match="too short for a ring"):
        RingReader(shm / "r", 0)


def test_the_format_of_the_slots_travels_with_the_ring(shm: Path) -> None:
    make(shm / "r").close()
    assert RingReader(shm / "r", 0).slot_format == 3
    assert RingWriter.adopt(shm / "r").slot_format == 3
