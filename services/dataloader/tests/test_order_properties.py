"""The sample order against Megatron-LM's algorithm written out naively, token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import InputError
from headway.dataloader.client import DataClient
from headway.dataloader.config import stream_spec
from headway.dataloader.order import SampleOrder, samples_per_epoch
from headway.testkit.data_daemon import write_tokens
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st


def megatron_samples(
    lengths: list[int], seq_len: int, seed: int, num_samples: int
) -> list[list[tuple[int, int]]]:
    """Every sample as (sequence, token) pairs, in the order handed out: plain
    loops, nothing clever."""
    num_tokens = sum(lengths)
    epochs = 1
    while epochs * num_tokens < num_samples * seq_len + 1:
        epochs += 1
    separate, before = False, 0
    if epochs > 1:
        before = ((epochs - 1) * num_tokens - 1) // seq_len
        separate = num_samples - before < int(0.80 * ((num_tokens - 1) // seq_len))
    random = np.random.RandomState(seed)
    order: list[int] = []
    for count in [epochs - 1, 1] if separate else [epochs]:
        block = np.concatenate([np.arange(len(lengths), dtype=np.int32)] * count)
        random.shuffle(block)
        order += block.tolist()
    flat = [(sequence, token) for sequence in order for token in range(lengths[sequence])]
    samples = [flat[at : at + seq_len + 1] for at in range(0, len(flat) - seq_len, seq_len)]
    shuffled: list[int] = []
    for low, high in [(0, before), (before, len(samples))] if separate else [(0, len(samples))]:
        block = np.arange(low, high, dtype=np.uint32)
        random.shuffle(block)
        shuffled += block.tolist()
    return [samples[index] for index in shuffled]


@settings(max_examples=200)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=9),
    seq_len=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
    num_samples=st.integers(1, 60),
)
# a second epoch used a little: shuffled apart
@example(lengths=[7, 5], seq_len=2, seed=1234, num_samples=7)
@example(lengths=[0, 7, 0, 0, 5], seq_len=3, seed=1, num_samples=3)
# shorter than one sample, which then goes over several epochs
@example(lengths=[2, 1], seq_len=9, seed=1234, num_samples=5)
def test_every_sample_is_megatrons(
    lengths: list[int], seq_len: int, seed: int, num_samples: int
) -> None:
    assume(sum(lengths) > 0)
    order = SampleOrder(
        np.array(lengths, np.int32), seq_len=seq_len, seed=seed, num_samples=num_samples
    )
    expected = megatron_samples(lengths, seq_len, seed, num_samples)
    found = [
        [
            (sequence, token)
            for sequence, start, stop in order.pieces(index)
            for token in range(start, stop)
        ]
        for index in range(order.num_samples)
    ]
    assert found == expected
    assert order.num_samples >= num_samples


def test_the_indices_have_megatrons_types_and_values() -> None:
    """Worked by hand from the algorithm for seed 1234; a change of dtype or of a
    draw's order shows here."""
    order = SampleOrder(np.array([3, 5, 2], np.int32), seq_len=4, seed=1234, num_samples=2)
    random = np.random.RandomState(1234)
    documents = np.arange(3, dtype=np.int32)
    random.shuffle(documents)
    shuffle = np.arange(2, dtype=np.uint32)
    random.shuffle(shuffle)
    assert (order.document_index.dtype, order.sample_index.dtype, order.shuffle_index.dtype) == (
        np.int32,
        np.int32,
        np.uint32,
    )
    np.testing.assert_array_equal(order.document_index, documents)
    np.testing.assert_array_equal(order.shuffle_index, shuffle)
    assert order.sample_index.shape == (3, 2) and order.sample_index[0].tolist() == [0, 0]


def test_a_corpus_shorter_than_a_sample_serves_a_run_of_known_length_as_megatrons_does(
    tmp_path: Path,
) -> None:
    prefix = write_tokens(tmp_path / "x", [2, 3])
    spec = stream_spec(prefix, seq_len=7, micro_batch_size=1, num_samples=4)
    with DataClient(None, spec=spec) as client:
        assert [batch.sample for batch in client] == [0, 1, 2, 3]
    endless = stream_spec(prefix, seq_len=7, micro_batch_size=1)
    with pytest.raises(
        InputError,
        match="5 tokens contain no sample of seq_len 7; use a seq_len below 5, or give num",
    ):
        DataClient(None, spec=endless)


def test_sequences_without_a_token_are_refused() -> None:
    with pytest.raises(InputError, match="hold no tokens"):
        SampleOrder(np.array([0, 0], np.int32), seq_len=5, seed=0, num_samples=1)


def test_one_epoch_counts_only_whole_samples() -> None:
    assert [samples_per_epoch(n, 4) for n in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 1, 1, 2]
