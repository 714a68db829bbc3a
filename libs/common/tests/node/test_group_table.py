from __future__ import annotations

import random
import signal
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import CorruptError
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import RECORD, WAITING
from headway.common.node.group_table import NO_LINE, GroupCount
from headway.common.node.segment import PAGE_BYTES, Segment
from headway.common.node.testing import python_child, read_line
from headway.common.plan.collectives import GroupKind, Op, memberships
from headway.common.plan.grid import Grid

GRID = Grid(tp=2, pp=2, dp=2)
TP, DP = 2 * GroupKind.TP, 2 * GroupKind.DP


def by_line(reader: FlightReader) -> dict[int, GroupCount]:
    return {one.line: one for one in reader.groups()}


def test_a_reader_sees_what_was_entered_and_what_is_done(shm: Path) -> None:
    writer, reader = FlightWriter.create(shm / "f", 3), None
    lines = writer.table.begin(0, memberships(GRID, 3))
    reader = FlightReader(shm / "f")
    before = by_line(reader)
    assert set(before) == set(lines)
    assert all((one.entered, one.done, one.op) == (0, 0, 0) for one in before.values())
    for count in range(5):
        lines[TP].enter(Op.ALL_GATHER, 100 + count)
    lines[TP].leave()
    lines[TP].leave(is_broken=True)
    tp, dp = by_line(reader)[TP], by_line(reader)[DP]
    assert (tp.entered, tp.done, tp.op, tp.nbytes) == (5, 2, Op.ALL_GATHER, 104)
    assert tp.is_broken and 0 < tp.entered_ns <= tp.done_ns
    assert (tp.group & 0xFFFFFF, tp.size, dp.entered) == (2, 2, 0)
    reader.close()
    writer.close()
    lines[TP].enter(Op.SEND, 1)  # a thread of the transport that outlives the ring
    lines[TP].leave()


def test_a_generation_counts_from_zero_and_the_older_ones_late_calls_do_not(shm: Path) -> None:
    writer, reader = FlightWriter.create(shm / "f", 3), None
    old = writer.table.begin(0, memberships(GRID, 3))
    reader = FlightReader(shm / "f")
    old[TP].enter(Op.ALL_GATHER, 8)
    new = writer.table.begin(1, memberships(GRID, 3))
    assert reader.groups() == (), "of no use until the ring is of that generation, too"
    writer.set_generation(1)
    old[TP].leave()
    old[TP].enter(Op.ALL_GATHER, 8)
    new[TP].enter(Op.REDUCE_SCATTER, 8)
    tp = by_line(reader)[TP]
    assert (tp.entered, tp.done, tp.op) == (1, 0, Op.REDUCE_SCATTER)


def test_records_name_the_collective_that_they_issue_or_wait_for(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 3)
    line = writer.table.begin(0, memberships(GRID, 3))[DP]
    with writer.record(9, step=1, peer=-1) as sequence:
        writer.name(sequence, line.enter(Op.ALL_GATHER, 8))
    with writer.record(10, step=1, flags=WAITING, collective=line.coming(Op.ALL_REDUCE)):
        line.enter(Op.ALL_REDUCE, 8)
    with writer.record(1, step=1, peer=1):
        pass
    issued, waited, none = (
        FlightReader(shm / "f").snapshot()[["line", "op", "collective", "peer"]].tolist()
    )
    assert issued == (DP, Op.ALL_GATHER, 1, -1)
    assert waited == (DP, Op.ALL_REDUCE, 2, -1)
    assert none == (0, 0, 0, 1)


def test_what_the_device_reached_counts_all_before_it(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 3)
    line = writer.table.begin(0, memberships(GRID, 3))[DP]
    names = [line.enter(Op.ALL_GATHER, 8) for _ in range(6)]
    reader = FlightReader(shm / "f")
    for reached, done in ((names[3], 4), (names[1], 4), (names[5], 6)):
        writer.table.reach(reached)
        assert by_line(reader)[DP].done == done
    writer.table.reach(NO_LINE.coming(Op.ALL_GATHER))  # nothing


def test_a_ring_of_another_version_is_refused_by_its_number(shm: Path) -> None:
    Segment.create(shm / "f", 2 * PAGE_BYTES, b"HWFLIGHT", 1).close()
    with pytest.raises(CorruptError, match="layout version 1, this program writes 2"):
        FlightReader(shm / "f")


WRITER = """
import sys
from pathlib import Path
from headway.common.node.flight import FlightWriter
from headway.common.plan.collectives import Op, memberships
from headway.common.plan.grid import Grid
writer = FlightWriter.create(Path(sys.argv[1]), 3, 64)
print("ready", flush=True)
generation = 0
while True:
    lines = list(writer.table.begin(generation, memberships(Grid(tp=2, pp=2, dp=2), 3)).values())
    writer.set_generation(generation)
    for count in range(200):
        for line in lines:
            line.enter(Op.ALL_GATHER, 8)
        for line in lines:
            line.leave()
    generation += 1
"""


@pytest.mark.parametrize("num_kills", [25, pytest.param(500, marks=pytest.mark.slow)])
def test_a_table_is_readable_wherever_its_writer_is_killed(shm: Path, num_kills: int) -> None:
    chance = random.Random(7)
    for _ in range(num_kills):
        with python_child(WRITER, str(shm / "f")) as child:
            assert read_line(child) == "ready"
            reader = FlightReader(shm / "f")
            # a moment of the writer's life, not of the clock's: after some of its generations
            wanted = reader.header.generation + chance.randrange(1, 4)
            while reader.header.generation < wanted:
                check_counts(reader.groups())
            for _ in range(chance.randrange(2000)):
                pass
            child.send_signal(signal.SIGKILL)
            child.wait()
        check_counts(reader.groups())
        reader.close()


def check_counts(table: Iterable[GroupCount]) -> None:
    """A table that the writer above has written, or is writing."""
    for one in table:
        assert 0 <= one.done <= one.entered <= 200, one
        assert one.entered - one.done <= 1, one
        assert one.op in (0, Op.ALL_GATHER), one


def test_any_bytes_in_the_first_page_and_the_records_can_be_read(shm: Path) -> None:
    writer = FlightWriter.create(shm / "f", 3, capacity=16)
    for _ in range(20):
        writer.end(writer.begin(1))
    writer.close()
    chance = np.random.default_rng(11)
    header = (shm / "f").read_bytes()[:64]
    (shm / "f").write_bytes(header + b"\xff" * (PAGE_BYTES - 64 + 16 * RECORD.itemsize))
    with pytest.raises(CorruptError, match="capacity"):
        FlightReader(shm / "f")
    for _ in range(300):
        noise = chance.integers(0, 256, PAGE_BYTES - 64 + 16 * RECORD.itemsize, np.uint8)
        body = noise.tobytes()[:8] + (16).to_bytes(8, "little") + noise.tobytes()[16:]
        (shm / "f").write_bytes(header + body)
        reader = FlightReader(shm / "f")
        assert all(one.done <= one.entered for one in reader.groups())
        reader.snapshot()
        reader.last()
        reader.close()
