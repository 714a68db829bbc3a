"""A ring left by another program, or made for another specification, is not filled."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from headway.common.errors import CorruptError
from headway.common.node.ring import RingWriter
from headway.dataloader.client import DataClient
from headway.dataloader.config import StreamSpec, stream_spec
from headway.dataloader.prefetch import Prefetcher, ring_path
from headway.dataloader.stream import SLOT_FORMAT, slot_bytes
from headway.testkit.data_daemon import Daemon, in_process, rows


def leave_ring(folder: Path, spec: StreamSpec, **changes: int) -> Path:
    """What a daemon that has ended leaves, with some of its sizes changed."""
    sizes = {
        "slot_bytes": slot_bytes(spec),
        "num_slots": spec.ring_slots,
        "num_readers": spec.num_readers,
        "slot_format": SLOT_FORMAT,
    } | changes
    path = ring_path(folder, spec)
    RingWriter.create(path, spec=msgspec.json.encode(spec), **sizes).close()  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"slot_format": SLOT_FORMAT + 1},
        {"slot_bytes": 64},
        {"num_slots": 3},
        {"num_readers": 2},
    ],
    ids=str,
)
def test_a_ring_of_another_format_or_size_is_not_adopted_and_is_replaced_when_asked_for(
    ring_folder: Path, corpus: Path, changes: dict[str, int]
) -> None:
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=2, ring_slots=4)
    path = leave_ring(ring_folder, spec, **changes)
    left = path.stat().st_ino
    prefetcher = Prefetcher(ring_folder)
    assert prefetcher.adopt() == 0 and not prefetcher.fill()
    stream = prefetcher.open(spec)
    assert path.stat().st_ino != left and prefetcher.fill()
    assert stream.writer.head > 0
    prefetcher.stop(unlink=True)


def test_a_ring_that_fits_is_adopted(ring_folder: Path, corpus: Path) -> None:
    leave_ring(ring_folder, stream_spec(corpus, seq_len=16, micro_batch_size=2, ring_slots=4))
    prefetcher = Prefetcher(ring_folder)
    assert prefetcher.adopt() == 1 and prefetcher.fill()
    prefetcher.stop(unlink=True)


def test_a_client_refuses_slots_of_another_format(
    daemon: Daemon, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = stream_spec(corpus, seq_len=16, micro_batch_size=2)
    with monkeypatch.context() as patch, pytest.raises(CorruptError, match="another format"):
        patch.setattr("headway.dataloader.ring_source.SLOT_FORMAT", SLOT_FORMAT + 1)
        DataClient(daemon.endpoint, spec=spec)
    with DataClient(daemon.endpoint, spec=spec) as client:  # the place was given up
        assert rows(client, 2) == in_process(spec, 2)
