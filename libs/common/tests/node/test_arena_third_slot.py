"""The third slot of an arena has memory only while a durable snapshot is read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from headway.common.node.arena import Arena
from headway.common.node.segment import PAGE_BYTES
from headway.common.node.testing import python_child, read_line

SLOT_BYTES = 4 << 20


def snapshot(arena: Arena, step: int, *, wanted: bool = False) -> None:
    """Seal ``step``, then commit it."""
    slot = arena.begin(step, 1)
    slot.data[:] = step
    arena.seal(slot, wanted=wanted)
    arena.commit(step)


def large(path: Path) -> Arena:
    """Slots of 4 MiB, so that the rest of the file does not matter."""
    return Arena.create(
        path, run_id="0a1b2c3d", rank=0, slot_bytes=SLOT_BYTES, layout=b"{}", extra_bytes=PAGE_BYTES
    )


def num_slots(path: Path) -> float:
    """How many slots the memory of a file is worth."""
    return path.stat().st_blocks * 512 / SLOT_BYTES


def test_the_third_slot_has_memory_only_while_a_wanted_snapshot_is_read(shm: Path) -> None:
    path = shm / "a"
    arena = large(path)
    usage = [num_slots(path)]
    for step in range(8):
        if step == 5:
            arena.release(arena.wanted()[0])
        snapshot(arena, step, wanted=step == 2)
        if step == 2:
            arena.reserve()
        arena.trim()
        usage.append(num_slots(path))
    assert [round(count, 1) for count in usage] == [2, 2, 2, 3, 3, 3, 2, 2, 2]
    assert path.stat().st_size > 3 * SLOT_BYTES, "the file keeps its size"
    assert [s.step for s in arena.sealed()] == [6, 7]
    with Arena.open(path, writable=False) as reader:
        for info in reader.sealed():
            reader.verify(info)
    assert round(num_slots(path), 1) == 2, "a reader has touched the hole"


def test_a_successor_knows_the_hole_and_gives_back_what_its_predecessor_left(shm: Path) -> None:
    path = shm / "a"
    with large(path) as arena:
        snapshot(arena, 0)
        arena.invalidate_newer(-1)
        arena._segment.back(arena._data_start(2), SLOT_BYTES)  # as if it had died in ``trim``
    assert round(num_slots(path), 1) == 3
    with Arena.open(path) as successor:
        for step in range(4):
            snapshot(successor, step)
        assert [s.step for s in successor.sealed()] == [2, 3]
        assert round(num_slots(path), 1) == 2


FULL_SHM = """
import sys
from pathlib import Path
from headway.common.errors import InputError
from headway.common.node.arena import Arena
size = 4 << 20
arena = Arena.create(Path(sys.argv[1]), run_id="0a1b2c3d", rank=0, slot_bytes=size, layout=b"{}")
for step in range(3):
    arena.seal(arena.begin(step, 0), wanted=step == 1)
    arena.commit(step)
    if step == 1:
        for _ in range(2):
            try:
                arena.reserve()
            except InputError as error:
                print(error.message)
        arena.release(arena.wanted()[0])
for info in arena.sealed():
    arena.verify(info)
print([info.step for info in arena.sealed()])
"""


def test_without_room_for_a_third_slot_the_two_go_on(shm: Path) -> None:
    small = shm / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=10m", "headway-test", str(small)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs here: {mounted.stderr.strip()}")
    try:
        with python_child(FULL_SHM, small / "a") as child:
            assert "4.1 MiB wanted" in read_line(child)
            assert "4.1 MiB wanted" in read_line(child)
            assert read_line(child) == "[1, 2]"
            assert child.wait() == 0
    finally:
        subprocess.run(["umount", str(small)], check=True)
