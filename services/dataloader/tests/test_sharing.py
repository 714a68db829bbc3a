"""What a node does once for all its streams: read the index, build an order, hold an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from headway.common.node.ring import RingReader
from headway.dataloader import order
from headway.dataloader.client import DataClient
from headway.dataloader.config import StreamSpec, stream_spec
from headway.dataloader.filled_stream import Stream
from headway.dataloader.formats import bin_path
from headway.dataloader.prefetch import Prefetcher
from headway.testkit.data_daemon import in_process, write_tokens


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Grows by seed + epoch of each order that is built."""
    seeds: list[int] = []
    build = order.SampleOrder.__init__

    def counting(self: order.SampleOrder, *args: object, **settings: object) -> None:
        seeds.append(settings["seed"] + settings.get("epoch", 0))  # type: ignore[operator]
        build(self, *args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(order.SampleOrder, "__init__", counting)
    yield seeds


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Grows by the name of each file that is read whole."""
    names: list[str] = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (names.append(path.name), real(path))[1])
    yield names


@pytest.fixture
def prefetcher(ring_folder: Path) -> Iterator[Prefetcher]:
    made = Prefetcher(ring_folder)
    yield made
    made.stop(unlink=True)


def fill_all(prefetcher: Prefetcher) -> None:
    while prefetcher.fill():
        pass


def ranks(prefix: Path, count: int, **settings: int) -> list[StreamSpec]:
    return [
        stream_spec(
            prefix, seq_len=4, micro_batch_size=1, dp_size=count, dp_rank=rank, ring_slots=2,
            **settings,
        )  # type: ignore[arg-type]
        for rank in range(count)
    ]  # fmt: skip


def test_four_dp_ranks_share_one_order_and_one_reading_of_the_index(
    prefetcher: Prefetcher, tmp_path: Path, built: list[int], read: list[str]
) -> None:
    prefix = write_tokens(tmp_path / "x", [40, 50, 33, 70])
    for spec in ranks(prefix, 4):
        prefetcher.open(spec)
    assert built == []  # nothing is built by the thread that answers
    fill_all(prefetcher)
    assert len(built) == 1 and read.count("x.idx") == 1
    assert len({id(stream.packer) for stream in prefetcher.streams}) == 1


def test_a_new_generation_takes_the_order_over(
    prefetcher: Prefetcher, tmp_path: Path, built: list[int], read: list[str]
) -> None:
    prefix = write_tokens(tmp_path / "x", [40, 50, 33, 70])
    for generation in range(3):
        for spec in ranks(prefix, 2, generation=generation, start_sample=4 * generation):
            prefetcher.open(spec)
        fill_all(prefetcher)
    assert len(built) == 1 and read.count("x.idx") == 1


def test_other_data_under_the_same_name_are_opened_anew(
    prefetcher: Prefetcher, tmp_path: Path, built: list[int]
) -> None:
    prefix = write_tokens(tmp_path / "x", [40, 50, 33, 70])
    first, second = ranks(prefix, 2)
    prefetcher.open(first)
    fill_all(prefetcher)
    write_tokens(prefix, [40, 50, 33, 71])
    stream = prefetcher.open(second)
    fill_all(prefetcher)
    assert len(built) == 2
    assert stream.spec.fingerprint != prefetcher.streams[0].spec.fingerprint


def test_what_no_stream_reads_any_more_is_let_go(prefetcher: Prefetcher, tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [40, 50, 33, 70])
    for spec in ranks(prefix, 2):
        prefetcher.open(spec)
    fill_all(prefetcher)
    for rank in range(2):
        assert prefetcher.close(0, rank, "train")
    assert len(prefetcher._shared._packers) == 0


def test_a_failure_rebuilds_no_order(
    prefetcher: Prefetcher, tmp_path: Path, built: list[int]
) -> None:
    prefix = write_tokens(tmp_path / "x", [40, 50, 33, 70])
    good = bin_path(prefix).read_bytes()
    bin_path(prefix).write_bytes(bytes(len(good)))
    stream = prefetcher.open(ranks(prefix, 1)[0])
    for _ in range(3):
        stream.retry_at_s = 0.0
        prefetcher.fill()
        assert stream.trouble is not None and stream.writer.head == 0
    bin_path(prefix).write_bytes(good)
    stream.retry_at_s = 0.0
    fill_all(prefetcher)
    assert (len(built), stream.writer.head, stream.trouble) == (1, 2, None)


def _samples(stream: Stream, count: int, prefetcher: Prefetcher) -> list[int]:
    reader = RingReader(stream.writer.path, 0)
    found = []
    for _ in range(count):
        fill_all(prefetcher)
        seq, _ = reader.get(5.0)
        found.append(reader.digest(seq))
        reader.release(seq)
    reader.close()
    return found


def test_streams_at_three_epochs_build_each_epoch_once(
    prefetcher: Prefetcher, tmp_path: Path, built: list[int]
) -> None:
    prefix = write_tokens(tmp_path / "x", [401])  # 100 samples an epoch
    specs = [
        msgspec.structs.replace(spec, start_sample=100 * spec.dp_rank)
        for spec in ranks(prefix, 3, seed=7)
    ]
    streams = [prefetcher.open(spec) for spec in specs]
    for turn in range(4):
        for stream, spec in zip(streams, specs, strict=True):
            first = spec.start_sample + spec.dp_rank + 6 * turn
            assert _samples(stream, 2, prefetcher) == [first, first + 3]
    assert sorted(built) == [7, 8, 9]


def test_an_epoch_that_everybody_has_left_is_let_go(tmp_path: Path, built: list[int]) -> None:
    prefix = write_tokens(tmp_path / "x", [17])  # 4 samples an epoch
    spec = stream_spec(prefix, seq_len=4, micro_batch_size=2, seed=1)
    with DataClient(None, spec=spec) as client:
        for _ in range(20):
            client.next()
        packer = client._source._filler.packer  # type: ignore[attr-defined]
        assert len(packer._orders) <= 4
    assert built == list(range(1, 11))


def test_a_resumed_endless_stream_builds_only_its_own_epoch(
    tmp_path: Path, built: list[int]
) -> None:
    prefix = write_tokens(tmp_path / "x", [401])
    spec = stream_spec(prefix, seq_len=4, micro_batch_size=1, seed=0, start_sample=500)
    assert in_process(spec, 1)[0][0] == 500
    assert built == [5]
