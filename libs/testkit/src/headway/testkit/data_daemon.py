"""For tests of users of the data service: small corpora, streams, and a real daemon."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from headway.common.errors import DeadlineError
from headway.common.node.testing import child_environment, wait_until
from headway.common.wire.client import Client
from headway.common.wire.messages.dataloader import DataStatus, GetDataStatus
from headway.dataloader.client import DataClient
from headway.dataloader.config import StreamSpec
from headway.dataloader.formats import TokenFileWriter


def write_tokens(
    prefix: Path, lengths: Sequence[int], *, vocab_size: int = 60_000, seed: int = 0
) -> Path:
    """Write a ``.bin``/``.idx`` pair of random u16 tokens with these sequence lengths.

    Returns ``prefix``.
    """
    random = np.random.default_rng(seed)
    with TokenFileWriter(prefix, np.uint16) as writer:
        for length in lengths:
            writer.add(random.integers(0, vocab_size, length))
    return prefix


class Daemon:
    """A dataloader process, which may be killed and started repeatedly. Its log is ``log``."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        self.endpoint = f"ipc://{folder / 'd.sock'}"
        self.shm_dir = Path(tempfile.mkdtemp(prefix="headway-data-", dir="/dev/shm"))
        self.log = folder / "daemon.log"
        self.command = [
            sys.executable,
            "-m",
            "headway.dataloader",
            "serve",
            "--endpoint",
            self.endpoint,
        ]
        self.command += ["--shm-dir", str(self.shm_dir), *map(str, arguments)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                env=child_environment(),
            )
        wait_until(self._answers, what=f"an answer of the daemon, see {self.log}")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        try:
            self.status(timeout_s=0.5)
        except DeadlineError:
            return False
        return True

    @property
    def pid(self) -> int:
        """The pid of the running process."""
        assert self._process is not None
        return self._process.pid

    def status(self, timeout_s: float = 5.0) -> DataStatus:
        """The daemon's status of its rings."""
        with Client(self.endpoint) as client:
            return client.call(GetDataStatus(), DataStatus, timeout_s=timeout_s)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait()

    @property
    def files(self) -> list[str]:
        """Names of the files in its shared-memory folder."""
        return sorted(path.name for path in self.shm_dir.iterdir())


@contextlib.contextmanager
def running_daemon(folder: Path, *arguments: str | Path) -> Iterator[Daemon]:
    """A daemon with its socket in ``folder`` (a short path); ended and swept at the end."""
    daemon = Daemon(folder, *arguments)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.kill()
        for path in daemon.shm_dir.iterdir():
            path.unlink()
        daemon.shm_dir.rmdir()


def rows(client: DataClient, count: int) -> list[tuple[int, bytes, bytes, bytes]]:
    """The next batches as comparable values."""
    taken = []
    for _ in range(count):
        batch = client.next()
        taken.append(
            (batch.sample, batch.tokens.tobytes(), batch.labels.tobytes(), batch.mask.tobytes())
        )
    return taken


def in_process(spec: StreamSpec, count: int) -> list[tuple[int, bytes, bytes, bytes]]:
    """Return the next batches of a stream, read without a daemon."""
    with DataClient(None, spec=spec) as client:
        return rows(client, count)


def full(daemon: Daemon) -> bool:
    """Whether every ring of the daemon is."""
    return all(row.filled - row.released == row.spec.ring_slots for row in daemon.status().streams)
