from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from headway.common.wire.client import Client
from headway.common.wire.messages.ckpt_store import StoreStatus, StoreStatusReply
from headway.testkit import snapshots


def wait_until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come true"
        time.sleep(0.01)


@dataclass
class Daemon:
    process: subprocess.Popen[bytes]
    endpoint: str
    log: Path

    def status(self) -> StoreStatusReply:
        with Client(self.endpoint) as client:
            return client.call(StoreStatus(), StoreStatusReply, timeout_s=20)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Cluster:
    """Shared memory and sockets of emulated nodes, and real daemons on them."""

    def __init__(self, root: Path, shm_root: Path) -> None:
        self.root = root
        self.checkpoints = root / "checkpoints"
        self.shm_root = shm_root
        self.failpoints = shm_root / "failpoints.bin"
        self.daemons: list[Daemon] = []

    def shm_dir(self, node: int = 0) -> Path:
        path = self.shm_root / f"n{node}"
        path.mkdir(exist_ok=True)
        return path

    def start(self, node: int = 0, *extra: str, checkpoints: Path | None = None) -> Daemon:
        endpoint = f"ipc://{self.shm_root}/store{node}.sock"
        log = self.root / f"daemon-{node}.log"
        argv = [sys.executable, "-m", "headway.ckpt_store", "serve", "--endpoint", endpoint]
        argv += [
            "--shm-dir",
            str(self.shm_dir(node)),
            "--checkpoints",
            str(checkpoints or self.checkpoints),
        ]
        argv += ["--run-id", snapshots.RUN_ID, "--node", str(node), *extra]
        with log.open("ab") as out:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        daemon = Daemon(process, endpoint, log)
        self.daemons.append(daemon)
        return daemon

    def close(self) -> None:
        for daemon in self.daemons:
            with contextlib.suppress(ProcessLookupError):
                daemon.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    shm_root = Path(tempfile.mkdtemp(prefix="hw-ckpt-", dir=base))
    made = Cluster(tmp_path, shm_root)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(shm_root)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that fail are tried again at once."""
    monkeypatch.setattr("headway.ckpt_store.reading.PAUSES_S", (0.0,))


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until
