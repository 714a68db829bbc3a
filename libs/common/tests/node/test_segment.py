from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headway.common.errors import CorruptError, InputError
from headway.common.node.segment import HEADER_BYTES, Segment
from headway.common.node.testing import (
    child_environment,
    no_leaks,
    python_child,
    read_line,
    wait_until,
)

MAGIC = b"TESTSEG\0"


def make(path: Path, nbytes: int = 8192) -> Segment:
    return Segment.create(path, nbytes, MAGIC, 3)


def test_what_one_mapping_stores_another_reads(shm: Path) -> None:
    with make(shm / "a") as one, Segment.open(shm / "a", MAGIC, 3) as two:
        one.words[20] = 2**64 - 1
        one.array(np.int32, 4096, 4)[:] = [1, -2, 3, -4]
        assert two.words[20] == 2**64 - 1
        assert two.array(np.int32, 4096, 4).tolist() == [1, -2, 3, -4]
        assert (shm / "a").stat().st_mode & 0o777 == 0o600


def test_a_segment_opened_for_reading_cannot_be_written(shm: Path) -> None:
    with make(shm / "a"), Segment.open(shm / "a", MAGIC, 3) as reader:
        with pytest.raises(TypeError):
            reader.words[20] = 1
        assert not reader.array(np.uint8, 64, 8).flags.writeable


def test_create_refuses_a_taken_name_and_keeps_what_is_there(shm: Path) -> None:
    with make(shm / "a") as first:
        first.words[10] = 7
        with pytest.raises(FileExistsError):
            make(shm / "a")
        with Segment.open(shm / "a", MAGIC, 3) as again:
            assert again.words[10] == 7
    assert [path.name for path in shm.iterdir()] == ["a"]


def test_other_magic_version_or_length_is_called_corrupt(shm: Path) -> None:
    make(shm / "a").close()
    with no_leaks(shm):
        with pytest.raises(CorruptError, match="starts with"):
            Segment.open(shm / "a", b"ANOTHER\0", 3)
        with pytest.raises(CorruptError, match="version 3"):
            Segment.open(shm / "a", MAGIC, 4)
    os.truncate(shm / "a", 4096)
    with pytest.raises(CorruptError, match="4096 bytes"):
        Segment.open(shm / "a", MAGIC, 3)
    os.truncate(shm / "a", HEADER_BYTES - 1)
    with pytest.raises(CorruptError, match="less than a header"):
        Segment.open(shm / "a", MAGIC, 3)


def test_a_link_in_the_place_of_a_segment_is_not_followed(shm: Path) -> None:
    make(shm / "a").close()
    (shm / "b").symlink_to(shm / "a")
    with pytest.raises(OSError, match="symbolic"):
        Segment.open(shm / "b", MAGIC, 3)


def test_views_stay_valid_after_close_and_go_with_the_last(shm: Path) -> None:
    with no_leaks(shm):
        segment = make(shm / "a")
        view = segment.array(np.uint8, 4096, 16)
        view[:] = 9
        segment.close()
        segment.unlink()
        assert view.sum() == 9 * 16
        del view


def test_create_and_close_leaves_nothing_open(shm: Path) -> None:
    with no_leaks(shm):
        for _ in range(20):
            with make(shm / "a") as segment, Segment.open(shm / "a", MAGIC, 3, writable=True):
                segment.unlink()
                segment.unlink()


def test_a_missing_folder_is_bad_input(shm: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        make(shm / "nowhere" / "a")


def test_nobody_sees_a_segment_before_its_first_content_is_written(shm: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from headway.common.node.segment import Segment
kill = lambda segment: os.kill(os.getpid(), signal.SIGKILL)
Segment.create(Path(sys.argv[1]), 8192, b"TESTSEG\\0", 3, kill)
"""
    with python_child(code, shm / "a.bin") as child:
        assert child.wait() == -9
    assert not list(shm.iterdir()), "its memory is gone with it"
    make(shm / "a.bin").close()


def test_where_files_need_a_name_the_drafts_of_the_dead_are_removed_and_others_kept(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = os.open

    def without_tmpfile(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return really_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", without_tmpfile)
    with python_child("pass") as child:
        assert child.wait() == 0
        dead = shm / f".a.bin.{child.pid}"
    living, other = shm / ".a.bin.1", shm / f".b.bin.{child.pid}"
    for draft in (dead, living, other):
        draft.write_bytes(b"half")
    seen: list[str] = []
    with Segment.create(
        shm / "a.bin", 8192, MAGIC, 3, lambda _: seen.extend(p.name for p in shm.iterdir())
    ):
        assert sorted(seen) == sorted([f".a.bin.{os.getpid()}", living.name, other.name])
        assert sorted(shm.iterdir()) == sorted([shm / "a.bin", living, other])
    with Segment.open(shm / "a.bin", MAGIC, 3) as again:
        assert again.nbytes == 8192


@pytest.mark.parametrize("machine", ["aarch64", "riscv64", "ppc64le"])
def test_a_processor_with_a_weaker_order_of_stores_is_refused_by_name(
    shm: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    make(shm / "a").close()
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(InputError, match=f"{machine}.*x86-64 nodes"):
        make(shm / "b")
    with pytest.raises(InputError, match=machine):
        Segment.open(shm / "a", MAGIC, 3)
    for same in ("x86_64", "AMD64", "i686"):
        monkeypatch.setattr(platform, "machine", lambda name=same: name)
        Segment.open(shm / "a", MAGIC, 3).close()


def test_a_fill_that_fails_leaves_nothing(tidy_shm: Path) -> None:
    def fill(_: Segment) -> None:
        raise RuntimeError("no content")

    with pytest.raises(RuntimeError, match="no content"):
        Segment.create(tidy_shm / "a", 8192, MAGIC, 3, fill)


FULL = """
import resource, sys
from pathlib import Path
from headway.common.errors import InputError
from headway.common.node.segment import Segment
if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    Segment.create(Path(sys.argv[1]), 4 << 20, b"TESTSEG\\0", 3)
except InputError as error:
    print(error)
"""


def test_a_file_size_limit_gives_a_clean_error(shm: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, shm / "a", "limit"],
        capture_output=True,
        text=True,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "4.0 MiB wanted" in done.stdout
    assert not list(shm.iterdir())


def test_full_shared_memory_gives_a_clean_error(shm: Path) -> None:
    small = shm / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "headway-test", small],
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs here: {mounted.stderr.strip()}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", FULL, small / "a", "tmpfs"],
            capture_output=True,
            text=True,
            env=child_environment(),
        )
        assert done.returncode == 0, done.stderr
        assert "no room for" in done.stdout
        assert "1.0 MiB free" in done.stdout
        assert not list(small.iterdir())
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_word_is_never_seen_half_written(shm: Path) -> None:
    code = """
import sys
from pathlib import Path
from headway.common.node.segment import Segment
words = Segment.open(Path(sys.argv[1]), b"TESTSEG\\0", 3, writable=True).words
a, b = 0x1111111111111111, 0x2222222222222222
print("up", flush=True)
while words[30] == 0:
    for _ in range(1000):
        words[20] = a
        words[20] = b
"""
    with make(shm / "a") as segment, python_child(code, shm / "a") as child:
        segment.words[20] = 0x1111111111111111
        assert read_line(child) == "up"
        seen: set[int] = set()
        wait_until(lambda: len(seen) > 1 or bool(seen.add(segment.words[20])), what="both values")
        seen |= {segment.words[20] for _ in range(500_000)}
        segment.words[30] = 1
        assert child.wait() == 0
        assert seen <= {0x1111111111111111, 0x2222222222222222}
