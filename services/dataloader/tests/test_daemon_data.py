"""A real daemon over data that are damaged, exchanged, cut short, or at their end."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from headway.common.errors import CorruptError, InputError
from headway.common.node.testing import wait_until
from headway.dataloader.client import ChangedDataError, DataClient
from headway.dataloader.config import DataConfig, stream_spec
from headway.dataloader.formats import bin_path
from headway.dataloader.prepare import prepare
from headway.testkit.data_daemon import Daemon, in_process, rows, write_tokens


def test_damaged_data_reach_every_waiting_reader_by_name_and_a_repair_goes_on(
    daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    for number in range(30):
        (tmp_path / "t" / f"{number}.txt").write_text(f"document {number} says so " * 40)
    folder = prepare(
        DataConfig(path=str(tmp_path / "d"), source=str(tmp_path / "t"), vocab_size=300)
    ).path
    good = bin_path(folder / "train").read_bytes()
    shutil.copy(bin_path(folder / "train"), tmp_path / "good")
    spec = stream_spec(folder, seq_len=16, micro_batch_size=4, ring_slots=2, num_readers=2)
    expected = in_process(spec, 12)
    bin_path(folder / "train").write_bytes(good[: len(good) // 2] + b"\xff\xff" * (len(good) // 4))
    clients = [DataClient(daemon.endpoint, spec=spec, reader=reader) for reader in (0, 1)]
    got: list[list[tuple[int, bytes, bytes, bytes]]] = [[], []]
    told: list[str] = []
    while len(told) < 2:  # in turns: a ring goes no further than its slowest reader
        for client, mine in zip(clients, got, strict=True):
            try:
                mine += rows(client, 1)
            except CorruptError as error:
                told.append(str(error))
    assert told[0] == told[1]
    assert re.search(r"train\.bin: bytes 0\.\.\d+ do not match their recorded digest", told[0])
    assert told[0] in daemon.status().streams[0].error
    assert "train.bin" in daemon.log.read_text()
    (tmp_path / "good").replace(bin_path(folder / "train"))
    wait_until(lambda: not daemon.status().streams[0].error, what="the repair to be seen")
    assert got[0] == got[1]
    for one in expected[len(got[0]) :]:
        assert [rows(client, 1) for client in clients] == [[one], [one]]
    for client in clients:
        client.close()


def test_a_restarted_daemon_does_not_go_on_with_other_data(daemon: Daemon, tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [300, 300])
    spec = stream_spec(prefix, seq_len=8, micro_batch_size=2, ring_slots=2)
    with DataClient(daemon.endpoint, spec=spec) as client:
        rows(client, 3)
        daemon.kill()
        write_tokens(prefix, [300, 301])
        daemon.start()
        with pytest.raises(ChangedDataError, match="have changed"):
            rows(client, 5)


def test_a_truncated_corpus_is_refused_when_opened(daemon: Daemon, tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [300, 300])
    bin_path(prefix).write_bytes(bin_path(prefix).read_bytes()[:-1])
    with pytest.raises(CorruptError, match=r"x\.bin is truncated"):
        DataClient(daemon.endpoint, spec=stream_spec(prefix, seq_len=8, micro_batch_size=2))
    with pytest.raises(InputError, match="no prepared data"):
        DataClient(
            daemon.endpoint, spec=stream_spec(tmp_path / "nothing", seq_len=8, micro_batch_size=2)
        )
    assert daemon.files == []
