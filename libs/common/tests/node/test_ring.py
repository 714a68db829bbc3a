from __future__ import annotations

import signal
import struct
from pathlib import Path

import pytest
from headway.common.errors import CorruptError, DeadlineError, HeadwayError, InputError
from headway.common.node import failpoints
from headway.common.node.arming import arm
from headway.common.node.failpoints import FailpointError
from headway.common.node.ring import RingAbortedError, RingReader, RingWriter
from headway.common.node.testing import no_leaks, python_child, read_line, send_line


def make(
    path: Path, *, slot_bytes: int = 64, num_slots: int = 4, num_readers: int = 1
) -> RingWriter:
    return RingWriter.create(
        path,
        spec=b'{"seed": 1}',
        slot_bytes=slot_bytes,
        num_slots=num_slots,
        num_readers=num_readers,
    )


def put(writer: RingWriter, value: int) -> int:
    slot = writer.reserve()
    assert slot is not None
    slot[:] = bytes([value % 256]) * len(slot)
    return writer.publish(value)


def test_every_reader_gets_every_slot_in_order(tidy_shm: Path) -> None:
    writer = make(tidy_shm / "r", num_readers=2)
    readers = [RingReader(tidy_shm / "r", k) for k in range(2)]
    for value in range(11):
        assert put(writer, value) == value
        for reader in readers:
            seq, slot = reader.get(5.0)
            assert (seq, bytes(slot)) == (value, bytes([value]) * 64)
            assert reader.digest(seq) == value
            del slot
            reader.release(seq)
    assert [r.poll() for r in readers] == [None, None]
    writer.unlink()
    for end in (writer, *readers):
        end.close()


def test_a_full_ring_takes_nothing_until_the_slowest_reader_releases(shm: Path) -> None:
    writer = make(shm / "r", num_slots=2, num_readers=2)
    fast, slow = RingReader(shm / "r", 0), RingReader(shm / "r", 1)
    put(writer, 1)
    put(writer, 2)
    for reader in (fast, slow):
        assert reader.poll() is not None
    fast.release(0)
    assert writer.reserve() is None
    slow.release(0)
    assert writer.reserve() is not None


def test_reserving_twice_gives_the_same_slot_and_publishing_twice_is_refused(shm: Path) -> None:
    writer = make(shm / "r")
    first, second = writer.reserve(), writer.reserve()
    assert first is not None and second is not None
    first[0] = 42
    assert second[0] == 42
    writer.publish()
    with pytest.raises(RuntimeError):
        writer.publish()
    assert writer.head == 1


def test_a_payload_cannot_be_written_by_a_reader(shm: Path) -> None:
    writer, reader = make(shm / "r"), RingReader(shm / "r", 0)
    put(writer, 1)
    _, slot = reader.get(5.0)
    with pytest.raises(TypeError):
        slot[0] = 0


def test_release_covers_earlier_slots_and_refuses_what_is_not_held(shm: Path) -> None:
    writer, reader = make(shm / "r"), RingReader(shm / "r", 0)
    for value in range(3):
        put(writer, value)
    reader.poll()
    reader.poll()
    with pytest.raises(ValueError, match="slot 2 is not held"):
        reader.release(2)
    reader.release(1)
    assert reader.tail == 2
    with pytest.raises(ValueError, match="slot 1 is not held"):
        reader.release(1)
    with pytest.raises(ValueError, match="not held"):
        reader.digest(0)


def test_a_reader_that_opens_again_gets_what_was_not_released(shm: Path) -> None:
    writer, reader = make(shm / "r"), RingReader(shm / "r", 0)
    for value in range(3):
        put(writer, value)
    for _ in range(3):
        reader.poll()
    reader.release(0)
    reader.close()
    again = RingReader(shm / "r", 0)
    assert [taken[0] for taken in (again.poll(), again.poll()) if taken] == [1, 2]


def test_the_wait_for_a_slot_ends_at_its_deadline_and_names_the_writers_state(shm: Path) -> None:
    writer, reader = make(shm / "r"), RingReader(shm / "r", 0)
    with pytest.raises(DeadlineError, match="its writer is alive"):
        reader.get(0.01)
    writer.close()
    with pytest.raises(DeadlineError, match="its writer is dead"):
        reader.get(0.01)


def test_an_abort_ends_the_wait_without_taking_a_slot(shm: Path) -> None:
    writer, reader = make(shm / "r"), RingReader(shm / "r", 0)
    asked = []

    def abort() -> bool:
        asked.append(True)
        return len(asked) > 30

    with pytest.raises(RingAbortedError):
        reader.get(60.0, abort)
    put(writer, 5)
    assert reader.get(5.0, lambda: True)[0] == 0


def test_a_slot_that_is_not_whole_is_called_corrupt(shm: Path) -> None:
    writer, reader = make(shm / "r", num_slots=2), RingReader(shm / "r", 0)
    put(writer, 1)
    payload_and_header = (shm / "r").stat().st_size - 2 * (64 + 64)
    data = bytearray((shm / "r").read_bytes())
    # the word that is written after the payload
    struct.pack_into("<Q", data, payload_and_header + 8, 0)
    with (shm / "r").open("r+b") as file:
        file.write(data)
    with pytest.raises(CorruptError, match="slot 0"):
        reader.poll()


def test_the_failpoint_in_publish_lies_before_readers_see_the_slot(shm: Path) -> None:
    failpoints.configure(shm / "fp.bin")
    arm(shm / "fp.bin", "ring.publish", "raise", {"seq": 1})
    writer, reader = make(shm / "r"), RingReader(shm / "r", 0)
    put(writer, 1)
    with pytest.raises(FailpointError):
        put(writer, 2)
    assert [taken and taken[0] for taken in (reader.poll(), reader.poll())] == [0, None]
    put(writer, 3)
    seq, slot = reader.get(5.0)
    assert (seq, slot[0]) == (1, 3)


def test_a_second_writer_that_overruns_a_held_slot_is_found_at_release(shm: Path) -> None:
    writer, reader = make(shm / "r", num_slots=1), RingReader(shm / "r", 0)
    put(writer, 1)
    seq, _ = reader.get(5.0)
    writer._words[32] = 1  # the tail, as if somebody had released for the reader
    assert writer.reserve() is not None
    writer._words[32] = 0
    with pytest.raises(CorruptError):
        reader.release(seq)


def test_bad_sizes_and_reader_numbers_are_bad_input(tidy_shm: Path) -> None:
    with pytest.raises(InputError, match="num_readers 57"):
        make(tidy_shm / "r", num_readers=57)
    with pytest.raises(InputError, match="slot_bytes 0"):
        make(tidy_shm / "r", slot_bytes=0)
    writer = make(tidy_shm / "r", num_readers=2)
    with pytest.raises(InputError, match=r"use 0\.\.1"):
        RingReader(tidy_shm / "r", 2)
    writer.close()
    writer.unlink()


def test_adopting_is_refused_while_the_writer_lives_and_goes_on_at_head_after_its_close(
    shm: Path,
) -> None:
    writer, reader = make(shm / "r"), RingReader(shm / "r", 0)
    put(writer, 1)
    with pytest.raises(HeadwayError, match="being written by process"):
        RingWriter.adopt(shm / "r")
    writer.close()
    heir = RingWriter.adopt(shm / "r")
    assert (heir.head, heir.spec) == (1, b'{"seed": 1}')
    assert put(heir, 2) == 1
    with pytest.raises(HeadwayError, match="being written by process"):
        RingWriter.adopt(shm / "r")
    assert [reader.get(5.0)[0], reader.get(5.0)[0]] == [0, 1]


WRITE = """
import os, signal, sys
from pathlib import Path
from headway.common.node.ring import RingWriter
path, begin, end = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
writer = RingWriter.adopt(path) if path.exists() else RingWriter.create(
    path, spec=b"s", slot_bytes=1 << 16, num_slots=3, num_readers=2)
while writer.head < end:
    slot = writer.reserve()
    if slot is None:
        continue
    if writer.head == end - 1 and sys.argv[4] == "die":
        slot[: 1 << 15] = b"\\xff" * (1 << 15)
        print("half", flush=True)
        signal.pause()
    slot[:] = bytes([writer.head % 251]) * (1 << 16)
    writer.publish(writer.head)
print("done", flush=True)
sys.stdin.readline()
"""


def take(readers: list[RingReader], upto: int) -> None:
    while readers[0].tail < upto:
        for reader in readers:
            seq, slot = reader.get(20.0)
            assert bytes(slot) == bytes([seq % 251]) * (1 << 16)
            assert reader.digest(seq) == seq
            reader.release(seq)


def test_a_writer_killed_in_a_slot_shows_nothing_torn_and_its_heir_goes_on(shm: Path) -> None:
    path = shm / "r"
    with python_child(WRITE, path, 0, 3, "live") as first:
        assert read_line(first) == "done"
        readers = [RingReader(path, 0), RingReader(path, 1)]
        take(readers, 3)
        assert readers[0].writer_alive()
    assert not readers[0].writer_alive()
    with python_child(WRITE, path, 3, 50, "die") as second:
        take(readers, 49)
        assert read_line(second) == "half"
        with pytest.raises(HeadwayError, match="being written"):
            RingWriter.adopt(path)
        second.send_signal(signal.SIGKILL)
        second.wait()
    assert [reader.poll() for reader in readers] == [None, None]
    with python_child(WRITE, path, 49, 90, "live") as third:
        take(readers, 90)
        assert read_line(third) == "done"
        send_line(third, "end")
        assert third.wait() == 0


def test_a_dead_writers_ring_may_be_adopted_by_one_process_only(shm: Path) -> None:
    code = """
import sys
from pathlib import Path
from headway.common.errors import HeadwayError
from headway.common.node.ring import RingWriter
print("up", flush=True)
sys.stdin.readline()
try:
    writer = RingWriter.adopt(Path(sys.argv[1]))
    print("mine", flush=True)
except HeadwayError:
    print("refused", flush=True)
sys.stdin.readline()
"""
    make(shm / "r").close()
    with python_child(code, shm / "r") as a, python_child(code, shm / "r") as b:
        for child in (a, b):
            assert read_line(child) == "up"
        for child in (a, b):
            send_line(child, "go")
        assert sorted([read_line(a), read_line(b)]) == ["mine", "refused"]


def test_rings_leave_no_file_descriptor_and_no_mapping(shm: Path) -> None:
    with no_leaks(shm):
        for _ in range(10):
            writer, reader = make(shm / "r"), RingReader(shm / "r", 0)
            put(writer, 1)
            taken = reader.poll()
            del taken
            reader.close()
            writer.close()
            writer.unlink()
