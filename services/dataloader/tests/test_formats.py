"""Megatron's files: bytes as documented, and every damage named when opened."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import CorruptError, InputError
from headway.dataloader.formats import TokenFile, TokenFileWriter, bin_path, idx_path, token_dtype
from headway.testkit.data_daemon import write_tokens
from hypothesis import given
from hypothesis import strategies as st


def test_the_written_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    with TokenFileWriter(tmp_path / "a.b", np.uint16) as writer:
        writer.add([1, 2, 65535])
        writer.add([7])
    assert (tmp_path / "a.b.bin").read_bytes() == struct.pack("<4H", 1, 2, 65535, 7)
    expected = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 3)
    expected += struct.pack("<2i", 3, 1) + struct.pack("<2q", 0, 6) + struct.pack("<3q", 0, 1, 2)
    assert (tmp_path / "a.b.idx").read_bytes() == expected


def test_a_megatron_file_with_several_sequences_per_document_is_read(tmp_path: Path) -> None:
    bin_path(tmp_path / "m").write_bytes(struct.pack("<5i", 10, 11, 12, 13, 14))
    idx_path(tmp_path / "m").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 3, 2) + struct.pack("<3i", 2, 1, 2)
        + struct.pack("<3q", 0, 8, 12) + struct.pack("<2q", 0, 3)
    )  # fmt: skip
    tokens = TokenFile(tmp_path / "m")
    assert [tokens.sequence(k).tolist() for k in range(3)] == [[10, 11], [12], [13, 14]]
    assert tokens.num_tokens == 5


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), min_size=1, max_size=12))
def test_what_was_written_is_read(documents: list[list[int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        with TokenFileWriter(Path(folder) / "x", np.int32) as writer:
            for one in documents:
                writer.add(one)
        tokens = TokenFile(Path(folder) / "x")
        assert [tokens.sequence(k).tolist() for k in range(tokens.num_sequences)] == documents


def test_the_dtype_follows_megatrons_bound() -> None:
    assert np.dtype(token_dtype(65_499)) == np.uint16
    assert np.dtype(token_dtype(65_500)) == np.int32


def test_an_id_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with TokenFileWriter(tmp_path / "x", np.uint16) as writer:
        with pytest.raises(ValueError, match="document 0"):
            writer.add([65_536])
        writer.add([1])
    assert TokenFile(tmp_path / "x").num_tokens == 1


def _patch(path: Path, at: int, new: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(new)] = new
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("at", "new", "words"),
    [
        (0, b"MMIDIDY", "not a Megatron index"),
        (9, struct.pack("<Q", 2), "version 2"),
        (17, b"\x09", "dtype code 9"),
        (17, b"\x06", "dtype code 6"),
        (18, struct.pack("<Q", 1 << 40), "truncated"),
        (34, struct.pack("<i", -4), "sequence 0 has a negative length"),
        (34 + 3 * 4, struct.pack("<q", 1), "not a multiple"),
        (34 + 3 * 12, struct.pack("<q", 5), "document array"),
    ],
)
def test_a_damaged_index_is_named(tmp_path: Path, at: int, new: bytes, words: str) -> None:
    prefix = write_tokens(tmp_path / "x", [3, 4, 5])
    _patch(idx_path(prefix), at, new)
    with pytest.raises(CorruptError, match=words) as raised:
        TokenFile(prefix)
    assert "x.idx" in str(raised.value)


@pytest.mark.parametrize("size", [0, 5, 20, 33, 60])
def test_a_truncated_index_is_named(tmp_path: Path, size: int) -> None:
    prefix = write_tokens(tmp_path / "x", [3, 4, 5])
    idx_path(prefix).write_bytes(idx_path(prefix).read_bytes()[:size])
    with pytest.raises(CorruptError, match=r"x\.idx"):
        TokenFile(prefix)


def test_truncated_tokens_are_named_with_the_first_sequence_that_is_cut(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "x", [3, 4, 5])
    bin_path(prefix).write_bytes(bin_path(prefix).read_bytes()[:13])
    with pytest.raises(
        CorruptError,
        match=r"x\.bin is truncated: 13 bytes, its index needs 24 \(sequence 1 is cut\)",
    ):
        TokenFile(prefix)


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_a_missing_file_says_how_to_make_it(tmp_path: Path, ending: str) -> None:
    prefix = write_tokens(tmp_path / "x", [3])
    (tmp_path / f"x{ending}").unlink()
    with pytest.raises(InputError, match=rf"x\{ending}.*headway data prepare"):
        TokenFile(prefix)
