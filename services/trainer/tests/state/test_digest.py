"""The digest changes with any single bit, and not with how it is computed."""

from __future__ import annotations

import itertools

import pytest
import torch
from headway.trainer.state import digest as digests
from headway.trainer.state.digest import digest, halves
from hypothesis import given
from hypothesis import strategies as st


def _bits(seed: int, num_words: int) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randint(-(1 << 63), (1 << 63) - 1, (num_words,), generator=drawn)


@given(
    seed=st.integers(0, 99),
    num_words=st.integers(1, 3 * digests.CPU_WORDS),
    at=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 63),
)
def test_any_one_bit_that_is_flipped_changes_it(
    seed: int, num_words: int, at: float, bit: int
) -> None:
    values = _bits(seed, num_words)
    before, where = int(digest(values)), int(at * num_words)
    mask = 1 << bit if bit < 63 else -(1 << 63)
    values[where] ^= mask
    assert int(digest(values)) != before
    values[where] ^= mask
    assert int(digest(values)) == before


@given(seed=st.integers(0, 99), num_words=st.integers(1, 500), data=st.data())
def test_it_does_not_depend_on_how_it_is_split(
    seed: int, num_words: int, data: st.DataObject
) -> None:
    values = _bits(seed, num_words)
    cuts = data.draw(st.lists(st.integers(0, num_words), max_size=5))
    borders = [0, *sorted(cuts), num_words]
    parts = [digest(values[a:b], a) for a, b in itertools.pairwise(borders) if a < b]
    assert int(torch.stack(parts).sum()) == int(digest(values))


def test_it_does_not_depend_on_the_size_of_pieces_nor_on_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = _bits(1, 100_000)
    wanted = int(digest(values))
    words = [word % (1 << 64) for word in values.tolist()]
    mixed = [word ^ (word >> 29) for word in words]
    python = sum((2 * at + 1) * word for at, word in enumerate(mixed)) % (1 << 64)
    assert wanted % (1 << 64) == python
    monkeypatch.setattr(digests, "CPU_WORDS", 777)
    assert int(digest(values)) == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_signs_that_flip_do_not_cancel(dtype: torch.dtype) -> None:
    step = 8 // dtype.itemsize  # the uppermost bit of a word is the sign of its last value
    for other in range(2, 64):
        values = torch.ones(64 * step, dtype=dtype)
        before = int(digest(values))
        values[[step - 1, other * step - 1]] = -1.0
        assert int(digest(values)) != before


def test_all_bits_that_flip_at_once_change_it() -> None:
    values = torch.zeros(64, dtype=torch.int64)
    before = int(digest(values))
    values[5] = -1
    assert int(digest(values)) != before


def test_swapped_values_are_different() -> None:
    values = torch.arange(64, dtype=torch.bfloat16)
    before = int(digest(values))
    values[[3, 40]] = values[[40, 3]]
    assert int(digest(values)) != before


@given(value=st.integers(-(1 << 63), (1 << 63) - 1))
def test_its_halves_hold_it_exactly(value: int) -> None:
    high, low = halves(torch.tensor(value)).tolist()
    assert (int(high) << 32) + int(low) == value


def test_a_buffer_that_is_not_padded_is_refused() -> None:
    with pytest.raises(ValueError, match="6 bytes"):
        digest(torch.zeros(3, dtype=torch.bfloat16))
