"""A real data daemon whose disk can be made to fail, like a bad sector or a lost mount."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from headway.testkit.data_daemon import Daemon

_WITH_A_BAD_DISK = """
import errno, os, sys, time
from pathlib import Path
flag, real = Path(sys.argv.pop(1)), os.preadv
def preadv(fd, buffers, offset):
    word = flag.read_text() if flag.exists() else ""
    while word == "hang" and flag.exists():
        time.sleep(0.005)
    if word not in ("", "hang"):
        number = getattr(errno, word)
        raise OSError(number, os.strerror(number))
    return real(fd, buffers, offset)
os.preadv = preadv
from headway.dataloader.cli import main
sys.exit(main(sys.argv[1:]))
"""


class BadDisk:
    """A daemon whose reads of ``.bin`` fail with an errno, or hang, while a flag file exists."""

    def __init__(self, daemon: Daemon, flag: Path) -> None:
        self.daemon = daemon
        self._flag = flag

    def fails_with(self, word: str) -> None:
        """``EIO``, ``ESTALE``...; ``hang`` for reads that do not return."""
        draft = self._flag.with_suffix(".draft")
        draft.write_text(word)
        draft.rename(self._flag)

    def is_well(self) -> None:
        self._flag.unlink()


@contextlib.contextmanager
def daemon_on_a_bad_disk(folder: Path) -> Iterator[BadDisk]:
    """A daemon on a working disk; its socket is in ``folder``, and it is ended with the block."""
    daemon = Daemon(folder)
    flag = folder / "flag"
    serve = daemon.command.index("serve")
    daemon.command[1:serve] = ["-c", _WITH_A_BAD_DISK, str(flag)]
    try:
        daemon.start()
        yield BadDisk(daemon, flag)
    finally:
        daemon.kill()
        shutil.rmtree(daemon.shm_dir)
