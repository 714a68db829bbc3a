"""Which steps the arenas of a node hold, whatever lies there; and how a rank gets
a usable arena again."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError
from headway.common.node import arena_format as form
from headway.common.node.arena import Arena
from headway.common.node.arena_file import open_or_replace, remove
from headway.common.node.seals import read_seals
from headway.common.node.testing import python_child, read_line
from hypothesis import given, settings
from hypothesis import strategies as st

RUN_ID = "0a1b2c3d"
SLOT = 300


def place(path: Path, rank: int = 0, **changes: object) -> Arena:
    shape = {"run_id": RUN_ID, "rank": rank, "slot_bytes": SLOT, "layout": b"{}"} | changes
    return open_or_replace(path, **shape)  # type: ignore[arg-type]


def held(folder: Path, rank: int, *steps: int) -> Path:
    path = folder / f"arena-{rank}.bin"
    with place(path, rank) as arena:
        arena.reserve()  # so that three snapshots fit
        for step in steps:
            arena.seal(arena.begin(step, 1))
            arena.commit(step)
    return path


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), content, at)


def test_the_steps_of_every_rank_are_told_oldest_first(shm: Path) -> None:
    paths = [held(shm, 1, 4, 5, 6), held(shm, 12, 5, 6), held(shm, 2)]
    assert read_seals(paths) == ({1: (4, 5, 6), 12: (5, 6), 2: ()}, {})


def test_one_damaged_arena_is_named_and_keeps_nobody_from_the_others(shm: Path) -> None:
    paths = [held(shm, rank, 4, 5) for rank in range(6)]
    overwrite(paths[1], 0, b"\xff")
    os.truncate(paths[2], 100)
    paths[3].unlink()
    paths[3].mkdir()
    paths[4].unlink()
    os.mkfifo(paths[4])
    sealed, wrong = read_seals(paths)
    assert sealed == {0: (4, 5), 5: (4, 5)}
    assert sorted(wrong) == [1, 2, 3, 4]
    for rank, reason in wrong.items():
        assert str(paths[rank]) in reason


def test_a_rank_with_one_damaged_slot_offers_the_others(shm: Path) -> None:
    path = held(shm, 1, 4, 5, 6)
    overwrite(path, 8 * (form.slot_word(2) + form.STEP), b"\x63")
    sealed, wrong = read_seals([path])
    assert sealed == {1: (4, 5)}
    assert "slot 2" in wrong[1] and str(path) in wrong[1]


def test_the_arena_of_another_rank_or_run_is_not_taken_for_this_ones(shm: Path) -> None:
    path = held(shm, 1, 4)
    path.rename(shm / "arena-2.bin")
    sealed, wrong = read_seals([shm / "arena-2.bin"])
    assert sealed == {} and "of rank 1" in wrong[2]
    other = held(shm, 3, 4)
    assert read_seals([other], run_id=RUN_ID) == ({3: (4,)}, {})
    assert list(read_seals([other], run_id="ffffffff")[1]) == [3]


def test_what_has_gone_or_is_no_arena_by_name_is_left_out(shm: Path) -> None:
    (shm / "arena-x.bin").touch()
    (shm / "ring-0.bin").touch()
    assert read_seals([*shm.iterdir(), shm / "arena-7.bin"]) == ({}, {})


def test_a_file_that_may_not_be_read_is_named(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    path = held(shm, 1, 4)
    monkeypatch.setattr(os, "open", refuse)
    assert "Permission denied" in read_seals([path])[1][1]


@settings(max_examples=200)
@given(st.binary(min_size=0, max_size=8192), st.integers(0, 8192))
def test_reading_seals_never_raises_and_invents_no_step(content: bytes, at: int) -> None:
    with tempfile.TemporaryDirectory(prefix="headway-test-", dir="/dev/shm") as folder:
        path = held(Path(folder), 1, 4, 5)
        overwrite(path, at, content[: 8192 - at])
        sealed, wrong = read_seals([path])
        assert set(sealed.get(1, ())) <= {4, 5}
        assert sealed.get(1) == (4, 5) or str(path) in wrong[1]


def test_an_arena_that_fits_is_taken_over_and_one_that_is_missing_is_made(shm: Path) -> None:
    held(shm, 1, 4, 5)
    with place(shm / "arena-1.bin", 1) as arena:
        assert [info.step for info in arena.sealed()] == [4, 5]
        assert (arena.writer.pid, arena.replaced) == (os.getpid(), "")
    with place(shm / "arena-2.bin", 2) as arena:
        assert (arena.sealed(), arena.replaced) == ([], "")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"layout": b"[]"}, "another layout"),
        ({"slot_bytes": 301}, "size of a slot in bytes: 300 instead of 301"),
        ({"rank": 2}, "another rank: 1 instead of 2"),
        ({"run_id": "ffffffff"}, "another run: 0a1b2c3d instead of ffffffff"),
    ],
)
def test_an_arena_that_does_not_fit_is_replaced_and_the_reason_kept(
    shm: Path, changes: dict[str, object], told: str
) -> None:
    path = held(shm, 1, 4)
    with place(path, **({"rank": 1} | changes)) as arena:
        assert arena.sealed() == []
        assert told in arena.replaced and str(path) in arena.replaced
    assert [left.name for left in shm.iterdir()] == ["arena-1.bin"]


def test_layouts_that_place_everything_alike_are_the_same(shm: Path) -> None:
    path = held(shm, 1, 4)
    with place(path, 1, layout=b"{ }", difference=lambda *_: "") as arena:
        assert [info.step for info in arena.sealed()] == [4]


@pytest.mark.parametrize("kind", ["overwritten", "cut", "folder", "pipe", "link to nowhere"])
def test_whatever_is_in_the_place_of_the_arena_a_rank_gets_a_new_one(shm: Path, kind: str) -> None:
    path = held(shm, 1, 4)
    match kind:
        case "overwritten":
            overwrite(path, 0, b"\xff")
        case "cut":
            os.truncate(path, 17)
        case _:
            path.unlink()
    match kind:
        case "folder":
            path.mkdir()
            (path / "file").touch()
        case "pipe":
            os.mkfifo(path)
        case "link to nowhere":
            path.symlink_to(shm / "nowhere")
    with place(path, 1) as arena:
        assert str(path) in arena.replaced
        arena.seal(arena.begin(7, 1))
    assert read_seals(shm.glob("arena-*.bin")) == ({1: (7,)}, {})
    remove(path)
    remove(path)


HOLDER = """
import sys
from pathlib import Path
from headway.common.node.arena import Arena
Arena.open(Path(sys.argv[1])).claim()
print("holds it", flush=True)
sys.stdin.read()
"""


def test_an_arena_that_another_process_writes_is_not_replaced_whatever_its_shape(shm: Path) -> None:
    path = held(shm, 1, 4)
    with python_child(HOLDER, path) as child:
        assert read_line(child) == "holds it"
        with pytest.raises(HeadwayError, match=f"by process {child.pid}"):
            place(path, 1, slot_bytes=7)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert read_seals([path]) == ({1: (4,)}, {})
