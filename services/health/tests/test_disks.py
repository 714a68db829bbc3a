"""A file system that is full, and a disk that hangs below one, are named; both are real ones."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import wait_until
from headway.common.wire.messages.health import Finding
from headway.health.config import HealthConfig
from headway.health.sources.mounts import MountSource

CONFIG = HealthConfig()
WRITE = """
import os, sys
with open(sys.argv[1], "wb") as file:
    for _ in range(int(sys.argv[2])):
        file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
        print(flush=True)
"""


def run(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"`{words[0]}` cannot be done here: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def mounted(folder: Path, *words: str | Path) -> Iterator[Path]:
    folder.mkdir()
    run("mount", *words, folder)
    try:
        yield folder
    finally:
        # tests beside this one make mount namespaces, in which a copy keeps it busy until they end
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def disk(file: Path, mebibytes: int) -> Iterator[Path]:
    """A block device with an ext4 file system, whose blocks are in a file."""
    with file.open("wb") as made:
        made.truncate(mebibytes << 20)
    device = Path(run("losetup", "--find", "--show", file))
    try:
        run("mkfs.ext4", "-q", device)
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@contextlib.contextmanager
def frozen(folder: Path) -> Iterator[None]:
    """Writes to the file system wait, as for a disk that hangs."""
    run("fsfreeze", "--freeze", folder)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", folder], check=True)


def test_a_full_file_system_is_named_until_there_is_room(tmp_path: Path) -> None:
    now_s = [0.0]
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=8m", "none") as folder:
        source = MountSource(folder, CONFIG, lambda: now_s[0])
        assert source.read() == []
        with (folder / "half").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 4 << 20)
        assert source.read() == []
        with (folder / "rest").open("wb") as file:
            free_bytes = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            os.posix_fallocate(file.fileno(), 0, free_bytes)
        (found,) = source.read()
        assert (found.rule, found.subject, found.name) == ("mount_full", "mount", str(folder))
        assert source.read() == [], "one per episode"
        (folder / "rest").unlink()
        assert source.read() == []


def test_a_file_system_without_inodes_is_full(tmp_path: Path) -> None:
    options = "size=8m,nr_inodes=8"
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", options, "none") as folder:
        source = MountSource(folder, CONFIG)
        assert source.read() == []
        with contextlib.suppress(OSError):
            for number in range(16):
                (folder / str(number)).touch()
        (found,) = source.read()
        assert found.rule == "mount_full"
        assert "inodes" in found.line


@pytest.mark.timeout(120)
def test_a_disk_that_hangs_is_named_and_a_busy_one_is_not(tmp_path: Path) -> None:
    """Its blocks are in a file of another disk, whose file system is frozen."""
    with contextlib.ExitStack() as stack:
        lower = stack.enter_context(disk(tmp_path / "lower.img", 96))
        below = stack.enter_context(mounted(tmp_path / "lower", lower))
        upper = stack.enter_context(disk(below / "upper.img", 48))
        folder = stack.enter_context(mounted(tmp_path / "upper", upper))
        now_s = [0.0]
        source = MountSource(folder, CONFIG, lambda: now_s[0])

        def read() -> list[Finding]:
            now_s[0] += CONFIG.source_interval_s
            return source.read()

        words = [sys.executable, "-c", WRITE, str(folder / "data")]
        with subprocess.Popen([*words, "8"], stdout=subprocess.PIPE) as busy:
            assert busy.stdout is not None
            for _ in busy.stdout:
                assert read() == []
        assert busy.returncode == 0
        under_way = Path("/sys/class/block") / upper.name / "inflight"
        with contextlib.ExitStack() as held:
            held.enter_context(frozen(below))
            child = stack.enter_context(subprocess.Popen([*words, "4"], stdout=subprocess.DEVNULL))
            wait_until(lambda: sum(map(int, under_way.read_text().split())) > 0, what="a write")
            stalled = [one for _ in range(5) for one in read()]
        assert [(one.rule, one.name) for one in stalled] == [("mount_stalled", str(folder))]
        assert child.wait(60) == 0
        assert read() == []
