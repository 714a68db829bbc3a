from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import CorruptError, InputError
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import (
    ABORTED,
    BROKEN,
    ON_DEVICE,
    RECORD,
    WAITING,
    awaits_device,
    device_times,
)
from headway.common.node.process import ProcessId
from headway.common.node.testing import no_leaks, python_child, read_line, send_line, wait_until


def test_a_record_keeps_all_its_fields(tidy_shm: Path) -> None:
    writer, reader = FlightWriter.create(tidy_shm / "f", rank=7), None
    writer.set_generation(5)
    writer.end(
        writer.begin(3, step=2**31 - 1, micro_batch=-1, chunk=2, peer=-1, nbytes=2**33, flags=9)
    )
    reader = FlightReader(tidy_shm / "f")
    (record,) = reader.snapshot()
    named = dict(zip(RECORD.names or (), record.tolist(), strict=True))
    start, end = named.pop("start_ns"), named.pop("end_ns")
    assert 0 < start <= end
    assert named == {
        "kind": 3,
        "chunk": 2,
        "flags": 9,
        "micro_batch": -1,
        "step": 2**31 - 1,
        "generation": 5,
        "peer": -1,
        "line": 0,
        "op": 0,
        "collective": 0,
        "sequence": 0,
        "nbytes": 2**33,
        "device": 0,
    }
    header = reader.header
    assert (header.rank, header.generation, header.head, header.progress) == (7, 5, 1, 1)
    assert header.process == ProcessId.current()
    for end_of in (reader, writer):
        end_of.close()
    (tidy_shm / "f").unlink()


def test_a_wait_for_others_shows_while_it_lasts_and_ends_with_its_process(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 0)
    reader = FlightReader(shm / "f")
    assert not reader.header.is_waiting
    with writer.waiting:
        assert reader.header.is_waiting
        first = reader.header.waits
    assert not reader.header.is_waiting
    with writer.waiting:
        assert reader.header.waits > first, "each wait is another one"
        FlightWriter.create(shm / "f", 0).close()  # its successor does not wait
        assert not reader.header.is_waiting
    writer.close()
    with writer.waiting:
        pass  # a wait that outlives the rank's ring
    reader.close()


def test_an_open_record_shows_what_the_rank_is_in_now(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 0)
    reader = FlightReader(shm / "f")
    assert reader.last() is None
    writer.end(writer.begin(1, step=4))
    seq = writer.begin(6, step=4, micro_batch=2, peer=1)
    last = reader.last()
    assert last is not None
    assert (last.kind, last.micro_batch, last.peer, last.end_ns) == (6, 2, 1, 0)
    assert (reader.header.head, reader.header.progress) == (2, 1)
    writer.end(seq)
    last = reader.last()
    assert last is not None and last.end_ns >= last.start_ns


def test_records_overlap_and_end_in_any_order(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 0)
    outer = writer.begin(1)
    inner = writer.begin(2)
    writer.end(outer)
    assert [bool(r["end_ns"]) for r in FlightReader(shm / "f").snapshot()] == [True, False]
    writer.end(inner)


def test_a_record_ends_broken_when_its_block_raises(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 0)
    with pytest.raises(RuntimeError), writer.record(2, step=1, flags=WAITING):
        raise RuntimeError
    with writer.record(2, step=2, flags=WAITING):
        pass
    broken, whole = FlightReader(shm / "f").snapshot()
    assert broken["end_ns"] > 0 and broken["flags"] == WAITING | BROKEN
    assert whole["flags"] == WAITING


def test_a_record_that_a_fence_ended_is_marked_as_aborted(shm: Path) -> None:
    class FencedError(Exception):
        is_abort = True

    writer = FlightWriter.create(shm / "f", 0)
    with pytest.raises(FencedError), writer.record(2, step=1):
        raise FencedError
    (record,) = FlightReader(shm / "f").snapshot()
    assert record["flags"] == BROKEN | ABORTED


def test_the_ring_keeps_the_newest_records_in_order(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 0, capacity=8)
    for step in range(21):
        writer.end(writer.begin(1, step=step))
    reader = FlightReader(shm / "f")
    assert reader.snapshot()["step"].tolist() == list(range(14, 21))
    assert reader.snapshot(since=18)["step"].tolist() == [18, 19, 20]
    assert reader.snapshot(since=21).size == 0


def test_ending_a_record_that_was_overwritten_leaves_its_heir_open(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 0, capacity=4)
    old = writer.begin(1)
    for _ in range(4):
        writer.begin(2)
    writer.end(old)
    reader = FlightReader(shm / "f")
    assert reader.snapshot()["end_ns"].tolist() == [0, 0, 0]
    assert reader.header.progress == 1


def test_a_new_process_of_the_rank_goes_on_in_the_same_ring(shm: Path) -> None:
    code = """
import signal, sys
from pathlib import Path
from headway.common.node.flight import FlightWriter
writer = FlightWriter.create(Path(sys.argv[1]), 3, capacity=64)
writer.set_generation(1)
for step in range(5):
    writer.end(writer.begin(1, step=step))
writer.begin(5, step=5)
print("stuck", flush=True)
signal.pause()
"""
    with python_child(code, shm / "f") as child:
        assert read_line(child) == "stuck"
        reader = FlightReader(shm / "f")
        assert reader.header.process == ProcessId.of(child.pid)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert not reader.header.process.alive()
    heir = FlightWriter.create(shm / "f", 3, capacity=64)
    heir.set_generation(2)
    assert heir.begin(1, step=4) == 6
    records = reader.snapshot()
    assert records["step"].tolist() == [0, 1, 2, 3, 4, 5, 4]
    assert records["generation"].tolist() == [1] * 6 + [2]
    assert records["end_ns"][5] == 0
    assert reader.header.process == ProcessId.current()


def test_a_generation_outlives_the_process_that_set_it(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 0, capacity=8)
    writer.set_generation(4)
    writer.close()
    FlightWriter.create(shm / "f", 0, capacity=8).begin(1)
    assert FlightReader(shm / "f").snapshot()["generation"].tolist() == [4]


def test_a_ring_of_another_rank_or_size_is_refused(tidy_shm: Path) -> None:
    FlightWriter.create(tidy_shm / "f", 0, capacity=8).close()
    with pytest.raises(InputError, match="rank 0, capacity 8"):
        FlightWriter.create(tidy_shm / "f", 1, capacity=8)
    with pytest.raises(InputError, match="not 0, 16"):
        FlightWriter.create(tidy_shm / "f", 0, capacity=16)
    (tidy_shm / "f").write_bytes(b"\1" * 4096)
    with pytest.raises(CorruptError):
        FlightReader(tidy_shm / "f")
    (tidy_shm / "f").unlink()


# one attempt shows a missing lock in about 60 % of runs
@pytest.mark.parametrize("attempt", range(5))
def test_threads_of_the_writer_lose_no_record(shm: Path, attempt: int) -> None:
    writer = FlightWriter.create(shm / "f", attempt, capacity=32768)
    together = threading.Barrier(4)

    def work(chunk: int) -> None:
        together.wait()
        for step in range(5000):
            writer.end(writer.begin(1, chunk=chunk, step=step))

    threads = [threading.Thread(target=work, args=(chunk,)) for chunk in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    records = FlightReader(shm / "f").snapshot()
    assert records["sequence"].tolist() == list(range(20_000))
    for chunk in range(4):
        assert records["step"][records["chunk"] == chunk].tolist() == list(range(5000))


def test_a_reader_beside_a_fast_writer_sees_whole_records_only(shm: Path) -> None:
    code = """
import sys, threading
from pathlib import Path
from headway.common.node.flight import FlightWriter
writer = FlightWriter.create(Path(sys.argv[1]), 0, capacity=16)
stop = threading.Thread(target=sys.stdin.readline, daemon=True)
stop.start()
print("up", flush=True)
n = 0
while stop.is_alive():
    for _ in range(1000):
        writer.end(writer.begin(n % 256, step=n, micro_batch=n % 1000, nbytes=n, peer=n % 7))
        n += 1
print(n, flush=True)
"""
    with python_child(code, shm / "f") as child:
        assert read_line(child) == "up"
        reader, seen, last = FlightReader(shm / "f"), 0, 0
        wait_until(lambda: reader.header.head > 100, what="records")
        for _ in range(3000):
            records = reader.snapshot()
            n = records["sequence"].astype(np.int64)
            assert (np.diff(n) == 1).all()
            assert (records["kind"] == n % 256).all()
            assert (records["step"] == n).all()
            assert (records["micro_batch"] == n % 1000).all()
            assert (records["nbytes"] == n).all()
            assert (records["peer"] == n % 7).all()
            assert (records["end_ns"][:-1] > 0).all()
            seen += len(n)
            if len(n):
                assert n[0] >= last - 16
                last = int(n[-1])
        assert seen > 0
        send_line(child, "stop")
        total = int(read_line(child))
    assert reader.header.head == reader.header.progress == total


def test_flight_rings_leave_no_file_descriptor_and_no_mapping(shm: Path) -> None:
    with no_leaks(shm):
        for _ in range(10):
            writer = FlightWriter.create(shm / "f", 0, capacity=8)
            writer.begin(1)
            reader = FlightReader(shm / "f")
            records = reader.snapshot()
            reader.close()
            writer.close()
            assert len(records) == 1
            (shm / "f").unlink()


def test_the_times_of_a_device_are_added_later_and_in_one_word(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 0, capacity=4)
    reader = FlightReader(shm / "f")
    sequences = [writer.begin(kind, flags=ON_DEVICE if kind > 1 else 0) for kind in (1, 2, 3)]
    for seq in sequences:
        writer.end(seq)
    launched = reader.snapshot()
    assert awaits_device(launched).tolist() == [False, True, True]
    assert (device_times(launched) == launched).all()
    start_ns = int(launched["start_ns"][1]) + 7_000_300
    writer.correct(1, start_ns, start_ns + 2_000_000)
    writer.correct(2, start_ns + 2_000_000, start_ns + 2_000_100)
    seen = reader.snapshot()
    assert not awaits_device(seen).any()
    assert (seen["start_ns"] == launched["start_ns"]).all(), "savers go by it"
    found = device_times(seen)
    assert found["start_ns"][0] == launched["start_ns"][0]
    first, second = found[1], found[2]
    assert abs(int(first["start_ns"]) - start_ns) < 1000
    assert first["end_ns"] - first["start_ns"] == 2_000_000
    # 100 ns, each end rounded to a microsecond: known, of whatever length
    assert int(second["end_ns"]) - int(second["start_ns"]) in (0, 1000)
    # each in whole microseconds after its own record's start
    assert abs(int(first["end_ns"]) - int(second["start_ns"])) <= 1000
    for _ in range(4):
        writer.end(writer.begin(9))
    writer.correct(1, start_ns, start_ns + 1)
    assert not reader.snapshot()["device"].any(), "the record was overwritten meanwhile"
    writer.close()
    reader.close()


def test_times_of_a_device_beyond_the_word_are_cut_and_spoil_nothing_else(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 0)
    reader = FlightReader(shm / "f")
    writer.end(writer.begin(1, flags=ON_DEVICE))
    start_ns = int(reader.snapshot()["start_ns"][0])
    writer.correct(0, start_ns - 5_000_000, start_ns + 2**45)
    (found,) = device_times(reader.snapshot())
    assert found["start_ns"] == start_ns // 1000 * 1000, "never before its launch"
    assert int(found["end_ns"]) - int(found["start_ns"]) == (2**31 - 1) * 1000
    writer.close()
    reader.close()
