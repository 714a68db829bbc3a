"""What a slot holds, against a reference that lays out the global batch and
deals it to the ranks."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headway.common.errors import ConfigError, CorruptError, InputError
from headway.dataloader.client import ChangedDataError, DataClient
from headway.dataloader.config import stream_spec
from headway.dataloader.digests import digests_path
from headway.dataloader.formats import TokenFile, bin_path
from headway.dataloader.order import SampleOrder
from headway.dataloader.stream import check, slot_sample
from headway.testkit.data_daemon import write_tokens
from hypothesis import given, settings
from hypothesis import strategies as st


def global_rows(prefix: Path, seq_len: int, seed: int, num_rows: int) -> list[list[int]]:
    """Rows 0.. of the endless order, one epoch after the other: every rank's
    batches are cut from this."""
    tokens = TokenFile(prefix)
    rows: list[list[int]] = []
    epoch = 0
    while len(rows) < num_rows:
        one_epoch = (tokens.num_tokens - 1) // seq_len
        order = SampleOrder(
            tokens.lengths, seq_len=seq_len, seed=seed, epoch=epoch, num_samples=one_epoch
        )
        rows += [
            [int(t) for s, a, b in order.pieces(index) for t in tokens.sequence(s)[a:b]]
            for index in range(one_epoch)
        ]
        epoch += 1
    return rows[:num_rows]


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=3, max_size=8),
    seq_len=st.integers(1, 8),
    seed=st.integers(0, 5000),
    dp_size=st.integers(1, 5),
    micro_batch_size=st.integers(1, 3),
    num_global=st.integers(5, 9),
    start_step=st.integers(0, 3),
)
def test_all_ranks_together_read_the_global_batches_whatever_dp_is(
    lengths: list[int],
    seq_len: int,
    seed: int,
    dp_size: int,
    micro_batch_size: int,
    num_global: int,
    start_step: int,
) -> None:
    lengths = [*lengths, seq_len + 1]
    size = num_global * micro_batch_size
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_tokens(Path(folder) / "x", lengths)
        rows = global_rows(prefix, seq_len, seed, (start_step + 2) * size)
        for dp_rank in range(dp_size):
            spec = stream_spec(
                prefix, seq_len=seq_len, micro_batch_size=micro_batch_size, global_batch_size=size,
                dp_rank=dp_rank, dp_size=dp_size, seed=seed, start_sample=start_step * size,
            )  # fmt: skip
            mine = [j for j in range(num_global) if j % dp_size == dp_rank]
            assert spec.num_micro_batches == len(mine)
            with DataClient(None, spec=spec) as client:
                for step in (start_step, start_step + 1):
                    for j in mine:
                        first = step * size + j * micro_batch_size
                        batch = client.next()
                        expected = np.array(rows[first : first + micro_batch_size])
                        np.testing.assert_array_equal(batch.tokens, expected[:, :-1])
                        np.testing.assert_array_equal(batch.labels, expected[:, 1:])
                        assert batch.mask.all() and batch.mask.shape == batch.tokens.shape
                        assert batch.sample == first


def test_a_run_of_known_length_follows_megatrons_order_over_epochs(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [7, 9, 4, 11])
    tokens = TokenFile(prefix)
    order = SampleOrder(tokens.lengths, seq_len=4, seed=9, num_samples=20)
    assert order.num_epochs == 3
    with DataClient(
        None, spec=stream_spec(prefix, seq_len=4, micro_batch_size=1, seed=9, num_samples=20)
    ) as client:
        rows = [batch.tokens[0].tolist() for batch in client]
    expected = [
        [int(t) for s, a, b in order.pieces(i) for t in tokens.sequence(s)[a:b]][:-1]
        for i in range(20)
    ]
    assert rows == expected


def first_tokens(prefix: Path, count: int, **changes: Any) -> list[list[int]]:
    """The rows that a client of a specification with ``changes`` reads first."""
    with DataClient(None, spec=stream_spec(prefix, seq_len=4, micro_batch_size=1, **changes)) as it:
        return [[int(t) for t in it.next().tokens[0]] for _ in range(count)]


def test_the_next_seed_does_not_begin_with_the_second_epoch_of_this_one(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [50, 31])
    epoch = 80 // 4
    epochs = {
        seed: np.array(first_tokens(prefix, 4 * epoch, seed=seed)).reshape(4, -1)
        for seed in (7, 8, 9)
    }
    distinct = {rows.tobytes() for parts in epochs.values() for rows in parts}
    assert len(distinct) == 12, "every pair of a seed and an epoch has an order of its own"
    order = SampleOrder(TokenFile(prefix).lengths, seq_len=4, seed=7, num_samples=epoch)
    tokens = TokenFile(prefix)
    expected = [
        [int(t) for s, a, b in order.pieces(i) for t in tokens.sequence(s)[a:b]][:-1]
        for i in range(epoch)
    ]
    assert epochs[7][0].tolist() == np.concatenate(expected).tolist()


@pytest.mark.parametrize("kept", ["0123", "0123-order1", "0123-order3"])
def test_another_version_of_the_order_is_refused_by_name(tmp_path: Path, kept: str) -> None:
    prefix = write_tokens(tmp_path / "x", [50])
    spec = stream_spec(prefix, seq_len=4, micro_batch_size=1, fingerprint=kept)
    with pytest.raises(ChangedDataError, match=rf"'{kept}' names another order than order2"):
        DataClient(None, spec=spec)


def test_a_longer_endless_run_begins_as_the_shorter_one(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [40, 50])
    spec = stream_spec(prefix, seq_len=4, micro_batch_size=2)
    with DataClient(None, spec=spec) as whole:
        rows = [whole.next().tokens.copy() for _ in range(30)]
    later = stream_spec(prefix, seq_len=4, micro_batch_size=2, start_sample=2 * 25)
    with DataClient(None, spec=later) as client:
        for row in rows[25:]:
            np.testing.assert_array_equal(client.next().tokens, row)


def test_a_cycle_starts_again_at_its_first_sample(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [200])
    spec = stream_spec(
        prefix, seq_len=4, micro_batch_size=2, global_batch_size=4, cycle_samples=8, start_sample=4
    )
    assert [slot_sample(spec, slot) for slot in range(10)] == [4, 6, 8, 10, 4, 6, 8, 10, 4, 6]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"split": "test"}, "split 'test' is unknown"),
        ({"seq_len": 0}, "seq_len=0"),
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        ({"num_micro_batches": 3}, "num_micro_batches=3: dp rank 0 of 2 has 2 of the 4"),
        ({"global_batch_size": 9}, "not a multiple of micro_batch_size=2; use 8"),
        ({"dp_rank": 2}, "dp_rank=2 of 2"),
        ({"cycle_samples": 12}, "cycle_samples=12 is not a multiple of global_batch_size=8"),
        ({"num_readers": 17}, "num_readers=17 is out of range; use 1..16"),
        ({"ring_slots": 1 << 20, "seq_len": 1 << 30}, "out of range"),
    ],
)
def test_a_specification_that_cannot_be_is_named(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    import msgspec

    good = stream_spec(tmp_path, seq_len=4, micro_batch_size=2, global_batch_size=8, dp_size=2)
    check(good)
    with pytest.raises((ConfigError, InputError), match=words):
        check(msgspec.structs.replace(good, **change))


def test_a_token_outside_the_vocabulary_is_named_with_its_place(
    corpus: Path, tmp_path: Path
) -> None:
    import shutil

    copy = Path(shutil.copytree(corpus, tmp_path / "copy"))
    tokens = TokenFile(copy / "train")
    at = int(tokens.offsets[5]) + 2 * 3
    raw = bytearray(bin_path(copy / "train").read_bytes())
    raw[at : at + 2] = (40_000).to_bytes(2, "little")
    bin_path(copy / "train").write_bytes(raw)
    digests_path(copy / "train").unlink()
    meta = json.loads((copy / "meta.json").read_bytes())  # whoever wrote it described it like this
    meta["splits"]["train"]["bin_sha256"] = hashlib.sha256(raw).hexdigest()
    (copy / "meta.json").write_text(json.dumps(meta))
    with (
        DataClient(None, spec=stream_spec(copy, seq_len=16, micro_batch_size=4)) as client,
        pytest.raises(
            CorruptError,
            match=r"train\.bin: token 3 of sequence 5 is 40000, the vocabulary has 300",
        ),
    ):
        while True:
            client.next()


def test_other_data_than_the_fingerprint_says_are_refused(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [50])
    spec = stream_spec(prefix, seq_len=4, micro_batch_size=1)
    with DataClient(None, spec=spec) as client:
        mark = client.fingerprint
    again = stream_spec(prefix, seq_len=4, micro_batch_size=1, fingerprint=mark)
    with DataClient(None, spec=again) as client:
        client.next()
    write_tokens(prefix, [51])
    with pytest.raises(ChangedDataError, match="have changed"):
        DataClient(None, spec=again)
