"""The zygote's socket is made again where somebody has removed its file."""

from __future__ import annotations

import contextlib
import shutil
import socket
from pathlib import Path

import pytest
from headway.common.node.testing import private_roots
from headway.trainer.worker import zygote


def _send(path: Path, text: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text, str(path))


def test_requests_arrive_again_after_the_folder_was_emptied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zygote, "SERVICE_BEAT_S", 0.05)
    with private_roots() as (folder, _):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "zygote.sock"
        with contextlib.closing(zygote._Requests(path)) as requests:
            shutil.rmtree(folder)
            for _ in range(2):
                requests.keep_reachable()  # no folder yet: the executor makes it
            with pytest.raises(TimeoutError):
                requests.recv(256)
            folder.mkdir()
            requests.keep_reachable()
            _send(path, b"n0w1")
            assert requests.recv(256) == b"n0w1"
