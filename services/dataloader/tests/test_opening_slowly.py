"""A slow or large index delays no beat: it is opened, and its order built, beside the loop."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import DeadlineError, InputError
from headway.common.node.testing import wait_until
from headway.common.wire.messages.service import ServiceBeat
from headway.common.wire.server import Server
from headway.dataloader import built_orders
from headway.dataloader.built_orders import BuiltOrders
from headway.dataloader.built_orders import in_process as built_here
from headway.dataloader.client import DataClient
from headway.dataloader.config import stream_spec
from headway.dataloader.formats import TokenFile
from headway.dataloader.index import HEAD, MAGIC, VERSION, idx_path
from headway.dataloader.order import OrderSettings
from headway.testkit.data_daemon import Daemon, in_process, rows, write_tokens


class Beating:
    """A daemon whose beats are received here, and whose log can be read."""

    def __init__(self, folder: Path) -> None:
        self.beats: list[ServiceBeat] = []
        endpoint = f"ipc://{folder / 'x.sock'}"
        self._server = Server(endpoint, {ServiceBeat: lambda beat, _: self.beats.append(beat)})
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()
        self.daemon = Daemon(folder, "--executor", endpoint)
        self.daemon.start()

    def _receive(self) -> None:
        while not self._end.is_set():
            self._server.handle_ready()
            self._end.wait(0.02)

    def more_beats(self, count: int) -> None:
        """Wait for ``count`` new beats."""
        wanted = len(self.beats) + count
        wait_until(lambda: len(self.beats) >= wanted, what="beats of the daemon")

    def close(self) -> None:
        self.daemon.kill()
        self._end.set()
        self._thread.join()
        self._server.close()
        shutil.rmtree(self.daemon.shm_dir)


@pytest.fixture
def beating(short_folder: Path) -> Iterator[Beating]:
    made = Beating(short_folder)
    yield made
    made.close()


def test_the_daemon_beats_and_says_what_it_opens_while_the_index_is_slow(
    beating: Beating, tmp_path: Path
) -> None:
    prefix = write_tokens(tmp_path / "x", [300] * 4)
    index = idx_path(prefix).read_bytes()
    idx_path(prefix).unlink()
    os.mkfifo(idx_path(prefix))  # whoever reads it waits until somebody writes
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=1)
    found: list[object] = []

    def read() -> None:
        with DataClient(beating.daemon.endpoint, spec=spec) as client:
            found.extend(rows(client, 3))

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: spec.path in beating.daemon.status().opening, what="an opening index")
    beating.more_beats(3)
    with pytest.raises(DeadlineError, match=r"has been opening the index of .* for \d+ s"):
        DataClient(beating.daemon.endpoint, spec=spec, timeout_s=1.0)
    with idx_path(prefix).open("wb") as pipe:
        idx_path(prefix).unlink()  # later looks find a file
        idx_path(prefix).write_bytes(index)
        pipe.write(index)
    reader.join()
    assert found == in_process(spec, 3)
    wait_until(lambda: not beating.daemon.status().opening, what="nothing is being opened")


def test_a_large_order_is_built_in_another_process_while_the_daemon_beats(
    beating: Beating, tmp_path: Path
) -> None:
    lengths = np.full(built_orders.LARGE + 7, 2, np.int32)
    prefix = write_tokens(tmp_path / "x", [40])
    _write_index(prefix, lengths)
    spec = stream_spec(prefix, seq_len=64, micro_batch_size=2)
    with DataClient(beating.daemon.endpoint, spec=spec) as client:
        found = rows(client, 3)
    assert found == in_process(spec, 3)
    (order,) = beating.daemon.shm_dir.glob("order-*")
    made = order.stat().st_mtime_ns
    beating.daemon.kill()
    beating.daemon.start()
    with DataClient(beating.daemon.endpoint, spec=spec) as client:
        assert rows(client, 3) == found
    assert order.stat().st_mtime_ns == made, "a successor uses the files that are there"
    beating.more_beats(1)


def _write_index(prefix: Path, lengths: np.ndarray) -> None:  # type: ignore[type-arg]
    with idx_path(prefix).open("wb") as file:
        offsets = np.zeros(lengths.size, "<i8")  # all sequences are the same tokens
        file.write(HEAD.pack(MAGIC, VERSION, 8, lengths.size, lengths.size + 1))
        file.write(lengths.astype("<i4").tobytes() + offsets.tobytes())
        file.write(np.arange(lengths.size + 1, dtype="<i8").tobytes())


def test_a_kept_order_is_the_order_and_unused_ones_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = TokenFile(write_tokens(tmp_path / "x", [5, 0, 7, 30] * 50))
    monkeypatch.setattr(built_orders, "LARGE", 1)
    orders = BuiltOrders(tmp_path / "orders")
    (tmp_path / "orders").mkdir()
    for number in range(3):
        settings = OrderSettings(seq_len=4, seed=7, epoch=number, num_samples=900)
        kept, mine = orders.build(tokens, settings), built_here(tokens, settings)
        assert (kept.num_epochs, kept.num_samples) == (mine.num_epochs, mine.num_samples)
        assert [kept.pieces(k) for k in range(900)] == [mine.pieces(k) for k in range(900)]
    orders.sweep([kept.name], spare=1)
    assert len(list((tmp_path / "orders").iterdir())) == 2
    orders.sweep(())
    assert list((tmp_path / "orders").iterdir()) == []


def test_an_order_that_cannot_be_written_is_an_error_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = TokenFile(write_tokens(tmp_path / "x", [5] * 50))
    monkeypatch.setattr(built_orders, "LARGE", 1)
    with pytest.raises(InputError, match=r"cannot be built in .*: FileNotFoundError"):
        BuiltOrders(tmp_path / "none").build(tokens, OrderSettings(4, 0, 0, 9))
