"""A stream with ``num_samples`` ends with its last whole global batch, on every dp rank alike."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from headway.common.errors import ConfigError
from headway.common.node.testing import wait_until
from headway.dataloader import order
from headway.dataloader.client import DataClient, EndOfOrderError
from headway.dataloader.config import StreamSpec, stream_spec
from headway.dataloader.prefetch import Prefetcher
from headway.testkit.data_daemon import Daemon, in_process, write_tokens
from hypothesis import given, settings
from hypothesis import strategies as st


def samples(spec: StreamSpec, source: str | None = None) -> list[int]:
    with DataClient(source, spec=spec) as client:
        return [batch.sample for batch in client]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """193 tokens: 48 samples of 4 in one epoch."""
    return write_tokens(tmp_path / "x", [40, 50, 33, 70])


def test_a_resumed_stream_ends_where_the_whole_one_does(prefix: Path) -> None:
    def later(num_samples: int, start: int) -> list[int]:
        return samples(
            stream_spec(
                prefix, seq_len=4, micro_batch_size=2, num_samples=num_samples, start_sample=start
            )
        )

    assert later(20, 0) == list(range(0, 20, 2))
    assert later(20, 12) == [12, 14, 16, 18]
    assert later(47, 40) == [40, 42, 44]
    assert later(47, 46) == later(47, 47) == []


@settings(max_examples=30)
@given(
    dp_size=st.integers(1, 3),
    num_local=st.integers(1, 2),
    micro_batch_size=st.integers(1, 2),
    num_samples=st.integers(1, 60),
    start_step=st.integers(0, 3),
)
def test_all_dp_ranks_get_equally_many_micro_batches_of_whole_global_batches(
    dp_size: int, num_local: int, micro_batch_size: int, num_samples: int, start_step: int
) -> None:
    size = dp_size * num_local * micro_batch_size
    start = min(start_step * size, num_samples // size * size)
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_tokens(Path(folder) / "x", [40, 50, 33, 70])
        ranks = [
            samples(
                stream_spec(
                    prefix, seq_len=4, micro_batch_size=micro_batch_size, global_batch_size=size,
                    dp_size=dp_size, dp_rank=rank, num_samples=num_samples, start_sample=start,
                )
            )
            for rank in range(dp_size)
        ]  # fmt: skip
    assert {len(rank) for rank in ranks} == {(num_samples - start) // size * num_local}
    end = start + (num_samples - start) // size * size
    assert sorted(one for rank in ranks for one in rank) == list(
        range(start, end, micro_batch_size)
    )


def test_a_start_past_the_end_is_refused(prefix: Path) -> None:
    spec = stream_spec(prefix, seq_len=4, micro_batch_size=1, num_samples=8, start_sample=9)
    with pytest.raises(ConfigError, match=r"start_sample=9 .* num_samples=8; raise num_samples"):
        DataClient(None, spec=spec)
    cycle = stream_spec(prefix, seq_len=4, micro_batch_size=1, num_samples=8, cycle_samples=9)
    with pytest.raises(ConfigError, match=r"cycle_samples=9 .* num_samples=8"):
        DataClient(None, spec=cycle)


def test_next_past_the_end_raises_at_once_with_and_without_a_daemon(
    daemon: Daemon, prefix: Path
) -> None:
    spec = stream_spec(prefix, seq_len=4, micro_batch_size=2, num_samples=9, ring_slots=2)
    for source in (None, daemon.endpoint):
        with DataClient(source, spec=spec) as client:
            assert [batch.sample for batch in client] == [0, 2, 4, 6]
            for _ in range(2):
                with pytest.raises(EndOfOrderError, match="has ended: num_samples=9"):
                    client.next()
            assert list(client) == []


def test_the_end_is_a_state_and_not_an_error(daemon: Daemon, prefix: Path) -> None:
    spec = stream_spec(
        prefix, seq_len=4, micro_batch_size=1, num_samples=8, ring_slots=32, num_readers=2
    )
    with DataClient(daemon.endpoint, spec=spec) as client:
        wait_until(lambda: daemon.status().streams[0].ended, what="the end")
        row = daemon.status().streams[0]
        assert (row.filled, row.error) == (8, "")
        assert daemon.files == ["ring-g0-d0-train.bin"]  # no .error beside it
        assert [batch.sample for batch in client] == list(range(8))
        daemon.kill()
        daemon.start()
        wait_until(lambda: bool(daemon.status().streams), what="the adoption")
        assert daemon.status().streams[0].ended


def test_a_stream_at_its_end_costs_nothing(
    prefix: Path, ring_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    build = order.SampleOrder.__init__

    def counting(self: order.SampleOrder, *args: object, **settings: object) -> None:
        built.append(1)
        build(self, *args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(order.SampleOrder, "__init__", counting)
    prefetcher = Prefetcher(ring_folder)
    spec = stream_spec(prefix, seq_len=4, micro_batch_size=1, num_samples=8, ring_slots=64)
    stream = prefetcher.open(spec)
    while prefetcher.fill():
        pass
    assert stream.has_ended and stream.trouble is None and len(built) == 1
    for _ in range(3):
        stream.retry_at_s = 0.0
        assert not prefetcher.fill()
    assert len(built) == 1 and stream.writer.head == 8
    prefetcher.stop(unlink=True)


def test_a_turn_with_room_for_more_slots_stops_at_the_end(prefix: Path, ring_folder: Path) -> None:
    """The end may come in the middle of a turn, where only the filling of a slot can see it."""
    prefetcher = Prefetcher(ring_folder)
    spec = stream_spec(prefix, seq_len=4, micro_batch_size=1, num_samples=6, ring_slots=64)
    stream = prefetcher.open(spec)
    assert [stream.fill(4), stream.fill(4), stream.fill(4)] == [4, 2, 0]
    assert stream.writer.head == 6
    assert stream.has_ended and stream.trouble is None
    prefetcher.stop(unlink=True)


def test_an_empty_stream_has_ended_when_opened(daemon: Daemon, prefix: Path) -> None:
    spec = stream_spec(prefix, seq_len=4, micro_batch_size=2, num_samples=9, start_sample=8)
    assert samples(spec, daemon.endpoint) == samples(spec) == []


def test_a_daemon_hands_out_the_same_last_batches(daemon: Daemon, prefix: Path) -> None:
    spec = stream_spec(
        prefix, seq_len=4, micro_batch_size=2, num_samples=30, start_sample=20, ring_slots=2
    )
    with DataClient(daemon.endpoint, spec=spec) as client:
        got = [(batch.sample, batch.tokens.tobytes()) for batch in client]
    assert got == [row[:2] for row in in_process(spec, 5)]
