"""Damage to an arena file is found before any of it is used, wherever it lies."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import CorruptError, HeadwayError
from headway.common.node import arena_format as form
from headway.common.node.arena import Arena, SlotInfo
from headway.common.node.process import ProcessId
from headway.common.node.segment import LINE_BYTES, PAGE_BYTES, Segment
from headway.common.node.testing import python_child, read_line, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

SLOT = 5000
EXTRA = 200
LAYOUT = b'{"tensors": ["w"], "mesh": {"rank": 3}}'
FIRST_SLOT = 2 * PAGE_BYTES
FREEZER = Path("/sys/fs/cgroup/freezer")


def make(path: Path, steps: int = 3, wanted: int = -1) -> Arena:
    """Steps 0.. sealed and committed; step ``wanted`` is to be made durable."""
    arena = Arena.create(
        path, run_id="0a1b2c3d", rank=3, slot_bytes=SLOT, layout=LAYOUT, extra_bytes=EXTRA
    )
    arena.reserve()  # so that three snapshots fit
    for step in range(steps):
        slot = arena.begin(step, 1)
        slot.data[:] = np.random.default_rng(step).integers(0, 256, SLOT, np.uint8)
        arena.seal(slot, b"extra %d" % step, step == wanted)
        arena.commit(step)
    return arena


def change(path: Path, at: int, mask: int = 1) -> None:
    with path.open("r+b", buffering=0) as file:
        old = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([old ^ mask]), at)


def word_at(index: int) -> int:
    return index * 8


def sound(path: Path) -> list[int]:
    """Steps that are offered and pass their digest."""
    with Arena.open(path, writable=False) as arena:
        steps = []
        for info in arena.sealed():
            try:
                arena.verify(info)
            except CorruptError:
                continue
            steps.append(info.step)
        return steps


@pytest.mark.parametrize("where", ["first", "middle", "last", "extra"])
def test_a_flipped_bit_in_a_slot_is_found_and_named(shm: Path, where: str) -> None:
    path = shm / "arena-3.bin"
    arena = make(path)
    info = arena.sealed()[1]
    start = arena._data_start(info.index)
    extra = arena._extra_start(info.index)
    change(
        path, {"first": start, "middle": start + 2501, "last": start + SLOT - 1}.get(where, extra)
    )
    with pytest.raises(CorruptError) as error:
        arena.verify(info)
    assert f"slot {info.index} of {path}, step 1," in str(error.value)
    assert sound(path) == [0, 2]


def test_content_larger_than_one_chunk_is_covered_in_all_of_its_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(form, "CHUNK_BYTES", 100)
    data = np.arange(250, dtype=np.uint8)
    digests = {form.content_digest(form.chunk_digests(data), b"x")}
    for index in range(250):
        data[index] ^= 1
        digests.add(form.content_digest(form.chunk_digests(data), b"x"))
        data[index] ^= 1
    assert len(digests) == 251
    assert form.content_digest(form.chunk_digests(data[:200]), b"") not in digests


def test_a_bad_slot_is_not_offered_and_is_free_to_be_written(shm: Path) -> None:
    arena = make(shm / "a")
    newest = arena.sealed()[-1]
    arena.mark_bad(newest)
    assert [info.step for info in arena.sealed()] == [0, 1]
    assert arena.damage() == [], "it is known, and told by whoever marked it"
    slot = arena.begin(3, 2)
    assert slot.index == newest.index
    arena.mark_bad(newest)
    arena.seal(slot)
    assert [info.step for info in arena.sealed()] == [0, 1, 3], "another snapshot was marked"


def test_verifying_a_snapshot_that_was_dropped_meanwhile_is_not_called_damage(shm: Path) -> None:
    worker = make(shm / "a")
    reader = Arena.open(shm / "a", writable=False)
    info = reader.sealed()[-1]
    worker.invalidate_newer(1)
    with pytest.raises(HeadwayError, match="was dropped") as error:
        reader.verify(info)
    assert not isinstance(error.value, CorruptError)


HEADERS: dict[str, tuple[int, bytes]] = {
    "first byte": (0, b"\xff"),
    "version 1": (8, b"\x01"),
    "version 4": (8, b"\x04"),
    "length": (16, b"\xff" * 8),
    "rank": (LINE_BYTES, b"\x04"),
    "run": (LINE_BYTES + 8, b"ffffffff"),
    "absurd slot size": (LINE_BYTES + 16, b"\xff" * 8),
    "absurd layout size": (LINE_BYTES + 32, b"\xff" * 7),
    "layout digest": (LINE_BYTES + 40, b"\0" * 8),
    "number of slots": (LINE_BYTES + 48, b"\xff"),
    "checksum": (LINE_BYTES + 56, b"\0" * 8),
    "committed": (word_at(form.COMMITTED), b"\x09"),
    "committed zero": (word_at(form.COMMITTED), b"\0" * 8),
    "committed ones": (word_at(form.COMMITTED), b"\xff" * 8),
    "seals": (word_at(form.SEALS), b"\0" * 8),
    "layout": (PAGE_BYTES + 3, b"T"),
    "all": (0, b"\xff" * PAGE_BYTES),
    "nothing": (0, b"\0" * PAGE_BYTES),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_damaged_header_is_refused_by_name_and_a_living_mapping_finds_it_too(
    tidy_shm: Path, name: str
) -> None:
    path = tidy_shm / "arena-3.bin"
    arena = make(path)
    arena.check()
    at, content = HEADERS[name]
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), content, at)
    with pytest.raises(CorruptError, match="arena-3"):
        Arena.open(path)
    with pytest.raises(CorruptError, match="arena-3"):
        arena.check()
    arena.close()
    path.unlink()


@pytest.mark.parametrize("size", [0, 10, 64, PAGE_BYTES, FIRST_SLOT + SLOT, FIRST_SLOT - 1])
def test_a_file_that_was_cut_is_refused_and_its_worker_survives_looking_and_closing(
    shm: Path, size: int
) -> None:
    path = shm / "a"
    arena = make(path)
    os.truncate(path, size)
    with pytest.raises(CorruptError, match=r"\ba\b"):
        Arena.open(path)
    with pytest.raises(CorruptError, match=f"has {size} bytes"):
        arena.check()
    arena.close()


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "socket"])
def test_what_is_no_file_is_refused_without_waiting(shm: Path, kind: str) -> None:
    path = shm / "a"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            make(shm / "b").close()
            path.symlink_to(shm / "b")
        case _:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
    for writable in (False, True):
        with pytest.raises(CorruptError, match=f"{path}"):
            Arena.open(path, writable=writable)


def test_a_mapping_whose_file_was_removed_or_replaced_finds_that_out(shm: Path) -> None:
    arena = make(shm / "a")
    (shm / "a").unlink()
    with pytest.raises(CorruptError, match="was removed"):
        arena.check()
    make(shm / "a").close()
    with pytest.raises(CorruptError, match="replaced"):
        arena.check()


def _slot_words(arena: Arena) -> Iterator[tuple[str, int]]:
    info = arena.sealed()[-1]
    names = ("STATE", "STEP", "GENERATION", "WANTED", "EXTRA_USED", "SEAL", "DIGEST", "CHECKSUM")
    for name in names:
        yield name, form.slot_word(info.index) + getattr(form, name)


@pytest.mark.parametrize("bit", [0, 1, 7, 31, 63])
def test_one_bit_in_any_word_of_a_sealed_slot_takes_it_out_and_is_told(shm: Path, bit: int) -> None:
    for name, word in _slot_words(make(shm / "first")):
        path = shm / f"{name}"
        make(path).close()
        change(path, word_at(word) + bit // 8, 1 << bit % 8)
        with Arena.open(path) as arena:
            assert [info.step for info in arena.sealed()] == [0, 1], name
            (told,) = arena.damage()
            assert str(path) in told and "slot 2" in told
            slot = arena.begin(3, 2)
            assert slot.index == 2, "the damaged slot is free"
            arena.seal(slot)
            assert arena.damage() == []


def test_no_single_flip_turns_one_state_into_another() -> None:
    for one, other in itertools.combinations(form.STATES, 2):
        assert (one ^ other).bit_count() > 2


@given(st.integers(0, 2**32 - 1), st.integers(0, 63))
def test_a_number_shows_any_flipped_bit(value: int, bit: int) -> None:
    word = form.pack_number(value)
    assert form.unpack_number(word) == value
    assert form.unpack_number(word ^ 1 << bit) is None


def test_a_number_that_does_not_fit_is_refused() -> None:
    assert form.unpack_number(0) is None, "memory that was zeroed is no number"
    assert form.unpack_number((1 << 64) - 1) is None
    for value in (-1, 1 << 32):
        with pytest.raises(OverflowError):
            form.pack_number(value)


def test_a_damaged_released_word_releases_nothing_and_heals(shm: Path) -> None:
    arena = make(shm / "a", wanted=1)
    (info,) = arena.wanted()
    arena.release(info)
    assert not arena.busy()
    change(shm / "a", word_at(form.slot_word(info.index) + form.RELEASED) + 1)
    assert [again.step for again in arena.wanted()] == [1]
    arena.release(info)
    assert not arena.busy()


def _meaning(info: SlotInfo) -> SlotInfo:
    return replace(info, released=False)


def _damage_somewhere(folder: Path, damage: Callable[[Path], None]) -> None:
    """Whatever ``damage`` does, what is still offered and verified is what was sealed."""
    path = folder / "a"
    path.unlink(missing_ok=True)
    with make(path, wanted=1) as arena:
        before = {info.step: (_meaning(info), *arena.read(info)) for info in arena.sealed()}
        before = {step: (info, d.tobytes(), e) for step, (info, d, e) in before.items()}
    damage(path)
    try:
        arena = Arena.open(path)
    except CorruptError as error:
        assert str(path) in str(error)
        return
    with arena:
        assert (arena.rank, arena.run_id, arena.layout) == (3, "0a1b2c3d", LAYOUT)
        assert (arena.committed, arena.slot_bytes, arena.extra_bytes) == (2, SLOT, EXTRA)
        offered = arena.sealed()
        assert len(offered) + len(arena.damage()) == 3, "a slot is missing, and nobody says why"
        for info in offered:
            try:
                arena.verify(info)
            except CorruptError:
                continue
            data, extra = arena.read(info)
            assert (_meaning(info), data.tobytes(), extra) == before[info.step]


CHANGES = st.lists(
    st.tuples(st.integers(0, FIRST_SLOT - 1), st.integers(1, 255)), min_size=1, max_size=4,
    unique_by=lambda change: change[0],
)  # fmt: skip


@settings(max_examples=300)
@given(CHANGES)
def test_changed_bytes_in_the_header_are_found_or_mean_nothing(
    changes: list[tuple[int, int]],
) -> None:
    def damage(path: Path) -> None:
        for at, mask in changes:
            change(path, at, mask)

    with tempfile.TemporaryDirectory(prefix="headway-test-", dir="/dev/shm") as folder:
        _damage_somewhere(Path(folder), damage)


def test_every_byte_of_the_words_and_the_layout_may_be_anything(shm: Path) -> None:
    """All of them, one after the other: hypothesis seldom hits the few hundred that matter."""
    used = [*range(word_at(form.slot_word(form.NUM_SLOTS))), *range(PAGE_BYTES, PAGE_BYTES + 39)]
    for at in used:
        _damage_somewhere(shm, lambda path, at=at: change(path, at, 1 << at % 8))  # type: ignore[misc]


@settings(max_examples=200)
@given(st.binary(min_size=0, max_size=FIRST_SLOT), st.integers(0, FIRST_SLOT))
def test_a_random_header_never_crashes_a_reader(content: bytes, at: int) -> None:
    def damage(path: Path) -> None:
        with path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), content[: FIRST_SLOT - at], at)

    with tempfile.TemporaryDirectory(prefix="headway-test-", dir="/dev/shm") as folder:
        _damage_somewhere(Path(folder), damage)


@settings(max_examples=200)
@given(st.integers(0, 2), st.integers(0, SLOT - 1), st.integers(1, 255))
def test_any_changed_byte_of_the_data_is_found(slot: int, at: int, mask: int) -> None:
    with tempfile.TemporaryDirectory(prefix="headway-test-", dir="/dev/shm") as folder:
        path = Path(folder) / "a"
        with make(path) as arena:
            (info,) = (info for info in arena.sealed() if info.index == slot)
            change(path, arena._data_start(slot) + at, mask)
            with pytest.raises(CorruptError):
                arena.verify(info)
        assert sound(path) == [step for step in range(3) if step != info.step]


def test_an_arena_of_version_1_is_refused_by_its_version(shm: Path) -> None:
    Segment.create(shm / "a", 4 * PAGE_BYTES, form.MAGIC, 1).close()
    with pytest.raises(CorruptError, match="layout version 1, this program writes 3"):
        Arena.open(shm / "a")


HOLDER = """
import sys, time
from pathlib import Path
from headway.common.node.arena import Arena
Arena.open(Path(sys.argv[1])).claim()
print("holds it", flush=True)
time.sleep(600)
"""


def test_a_holder_that_is_frozen_with_its_kill_pending_counts_as_gone(shm: Path) -> None:
    cell = FREEZER / f"headway-test-{os.getpid()}"
    try:
        cell.mkdir()
    except OSError as error:
        pytest.skip(f"needs a cgroup v1 freezer that may be written: {error}")
    path = shm / "a"
    make(path).close()
    try:
        with python_child(HOLDER, path) as child:
            assert read_line(child) == "holds it"
            (cell / "cgroup.procs").write_text(str(child.pid))
            (cell / "freezer.state").write_text("FROZEN")
            wait_until(lambda: (cell / "freezer.state").read_text() == "FROZEN\n")
            arena = Arena.open(path)
            with pytest.raises(HeadwayError, match=f"by process {child.pid}"):
                arena.claim()
            os.kill(child.pid, signal.SIGKILL)
            assert arena.writer.alive(), "it cannot take the signal"
            arena.claim()
            assert arena.writer == ProcessId.current()
            (cell / "freezer.state").write_text("THAWED")
            assert child.wait() == -signal.SIGKILL
    finally:
        (cell / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (cell / "cgroup.procs").read_text())
        cell.rmdir()
