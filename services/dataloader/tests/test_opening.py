"""Opening a stream can be ended by the caller, whatever the daemon does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from headway.common.errors import InputError, RemoteError
from headway.common.node.ring import RingAbortedError
from headway.common.node.testing import no_leaks, wait_until
from headway.dataloader import ring_source
from headway.dataloader.client import DataClient
from headway.dataloader.config import stream_spec
from headway.dataloader.digests import digests_path
from headway.testkit.data_daemon import Daemon, in_process, rows, write_tokens

from services.dataloader.tests.bad_disk import BadDisk


def after(num_asked: int) -> tuple[Callable[[], bool], list[int]]:
    """An abort that says yes at its ``num_asked``-th time."""
    asked: list[int] = []

    def abort() -> bool:
        asked.append(1)
        return len(asked) >= num_asked

    return abort, asked


def test_an_abort_ends_the_wait_for_a_daemon_that_is_not_there(
    short_folder: Path, corpus: Path
) -> None:
    abort, asked = after(5)
    spec = stream_spec(corpus, seq_len=8, micro_batch_size=1)
    with pytest.raises(RingAbortedError, match="opening"):
        DataClient(f"ipc://{short_folder}/none.sock", spec=spec, timeout_s=600, abort=abort)
    assert len(asked) == 5


def test_an_abort_ends_the_wait_for_a_stopped_daemon(daemon: Daemon, corpus: Path) -> None:
    abort, _ = after(5)
    os.kill(daemon.pid, signal.SIGSTOP)
    spec = stream_spec(corpus, seq_len=8, micro_batch_size=1)
    with no_leaks(daemon.shm_dir), pytest.raises(RingAbortedError):
        DataClient(daemon.endpoint, spec=spec, timeout_s=600, abort=abort)


def test_an_abort_that_is_true_at_once_opens_nothing(daemon: Daemon, corpus: Path) -> None:
    spec = stream_spec(corpus, seq_len=8, micro_batch_size=1)
    for source in (None, daemon.endpoint):
        with pytest.raises(RingAbortedError):
            DataClient(source, spec=spec, abort=lambda: True)
    assert daemon.files == []


def test_a_slow_opening_is_waited_for_and_can_be_left(bad_disk: BadDisk, tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [300])
    digests_path(prefix).unlink()  # so that opening reads
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=1)
    bad_disk.fails_with("hang")
    abort, _ = after(4)
    with pytest.raises(RingAbortedError):
        DataClient(bad_disk.daemon.endpoint, spec=spec, timeout_s=600, abort=abort)
    waits: list[int] = []
    found: list[object] = []

    def wait() -> None:
        endpoint = bad_disk.daemon.endpoint
        with DataClient(endpoint, spec=spec, abort=lambda: bool(waits.append(1))) as client:
            found.extend(rows(client, 3))

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(lambda: len(waits) > 25, what="a wait longer than the time between two attempts")
    bad_disk.is_well()
    waiter.join()
    assert found == in_process(spec, 3)


def test_an_abort_ends_the_pause_after_a_read_that_failed(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call itself asks for an abort as well, so this one is answered without asking."""
    num_calls = 0

    class CannotRead:
        def __init__(self, _: str) -> None:
            pass

        def __enter__(self) -> CannotRead:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def call(self, *_: object) -> object:
            nonlocal num_calls
            num_calls += 1
            raise RemoteError("x.bin at byte 0: Input/output error", remote_code="read")

    monkeypatch.setattr(ring_source, "Client", CannotRead)
    abort, asked = after(4)
    spec = stream_spec(corpus, seq_len=8, micro_batch_size=1)
    with pytest.raises(RingAbortedError, match="opening"):
        DataClient("ipc:///nobody", spec=spec, timeout_s=2.5, abort=abort)
    assert (num_calls, len(asked)) == (1, 4)


def test_a_path_that_no_message_can_name_is_refused_and_read_in_process(
    daemon: Daemon, tmp_path: Path
) -> None:
    prefix = write_tokens(tmp_path / os.fsdecode(b"n\xe4me"), [50])
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=1)
    assert len(in_process(spec, 2)) == 2
    with pytest.raises(InputError, match=r"n\\udce4me is not UTF-8"):
        DataClient(daemon.endpoint, spec=spec)
