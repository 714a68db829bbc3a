"""A prepared folder: two token files, a tokenizer, and ``meta.json``, which describes them.

train.bin train.idx train.digests train.keys validation.bin validation.idx
validation.digests validation.keys tokenizer.json meta.json
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec
import numpy as np
from headway.common.errors import CorruptError, InputError
from headway.dataloader import digests as digests_module
from headway.dataloader.blocks import (
    BLOCK_BYTES,
    BlockReader,
    Digests,
    ReadError,
    trouble_with,
    wrong_block,
)
from headway.dataloader.config import SPLITS
from headway.dataloader.digests import digests_path
from headway.dataloader.document_keys import read_keys
from headway.dataloader.formats import TokenFile, bin_path, idx_path
from headway.dataloader.sources import DEBIAN_DOCS, STDLIB
from headway.dataloader.tokenizer import Tokenizer

META_VERSION = 1
_PREPARE = "run `headway data prepare`, or give the right path"
_AGAIN = "prepare the data again with --force"


class SplitMeta(msgspec.Struct, frozen=True, kw_only=True):
    """One split: counts, and SHA-256 of its two files."""

    documents: int
    tokens: int
    text_bytes: int
    bin_sha256: str
    idx_sha256: str


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """``meta.json``."""

    version: int
    source: str
    corpus_sha256: str
    """Digest over keys and texts of all documents in order, which identifies the source."""
    vocab_size: int
    """Tokens of the tokenizer; ``asked_vocab_size`` may be larger if there was little text."""
    asked_vocab_size: int
    validation_fraction: float
    eod_id: int
    dtype: str
    unigram_nats: float
    """Cross-entropy per validation token under unigrams of the training split, add-one smoothed."""
    tokenizer_sha256: str
    splits: dict[str, SplitMeta]


class Dataset:
    """A prepared folder, or the prefix of a Megatron ``.bin``/``.idx`` pair.

    A single pair has a training split only.
    """

    def __init__(self, path: str | Path) -> None:
        """Detect what ``path`` is; the token files are opened by ``split``.

        Raises:
            InputError: there are no prepared data. CorruptError: an unreadable ``meta.json``.
        """
        self.path = Path(path).expanduser()
        self.meta: Meta | None = None
        if self.path.is_dir():
            self.meta = read_meta(self.path)
        else:
            if self.path.suffix in (".bin", ".idx"):
                self.path = self.path.with_suffix("")
            if not idx_path(self.path).exists():
                raise InputError(f"no prepared data at {self.path}", remedy=_PREPARE)

    def prefix(self, split: str) -> Path:
        """Prefix of the split's pair.

        Raises:
            InputError: no such split.
        """
        if split not in SPLITS:
            raise InputError(f"split {split!r} is unknown", remedy=f"use {' or '.join(SPLITS)}")
        if self.meta is not None:
            return self.path / split
        if split != SPLITS[0]:
            raise InputError(
                f"{self.path} is one .bin/.idx pair without a {split} split",
                remedy="prepare a folder, or put two pairs named train and validation into one",
            )
        return self.path

    def split(self, split: str) -> TokenFile:
        """The split's tokens. Raises InputError or CorruptError, naming the file."""
        prefix = self.prefix(split)
        known = self.meta.splits.get(split) if self.meta is not None else None
        return TokenFile(prefix, known.bin_sha256 if known is not None else "")

    def keys(self, split: str) -> list[str] | None:
        """Where each document came from: a path relative to the source, or file and line.

        None for data that were prepared without them, as by other programs.

        Raises:
            InputError: no such split.
        """
        prefix = self.prefix(split)
        keys = read_keys(prefix)
        known = None if self.meta is None else self.meta.splits.get(split)
        return keys if known is None or keys is None or len(keys) == known.documents else None

    @property
    def vocab_size(self) -> int | None:
        """Number of token ids, None for a bare ``.bin``/``.idx`` pair."""
        return None if self.meta is None else self.meta.vocab_size

    @property
    def recipe(self) -> tuple[str, ...]:
        """Arguments of ``headway data prepare`` that make the same folder on another machine.

        Empty for a bare pair, for a source that is named by a relative path, and where a tokenizer
        was given.
        """
        meta = self.meta
        if meta is None or not meta.asked_vocab_size:
            return ()
        if meta.source not in (STDLIB, DEBIAN_DOCS) and not Path(meta.source).is_absolute():
            return ()
        options = {
            "--source": meta.source,
            "--vocab-size": meta.asked_vocab_size,
            "--validation-fraction": meta.validation_fraction,
        }
        return tuple(str(word) for option in options.items() for word in option)

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer. Raises InputError for a bare pair."""
        if self.meta is None:
            raise InputError(f"{self.path} has no tokenizer", remedy=_PREPARE)
        return Tokenizer.load(self.path / "tokenizer.json", end_id=self.meta.eod_id)


def read_meta(folder: Path) -> Meta:
    """``meta.json`` of a prepared folder.

    Raises:
        InputError: there is none. ReadError: the disk or the network failed.
        CorruptError: it is not readable, or another version wrote it.
    """
    path = folder / "meta.json"
    try:
        meta = msgspec.json.decode(path.read_bytes(), type=Meta)
    except OSError as error:
        trouble = trouble_with(path, 0, error)
        if isinstance(trouble, ReadError):
            raise trouble from error
        raise InputError(
            f"{folder} holds no prepared data ({path.name}: {error.strerror})", remedy=_PREPARE
        ) from error
    except ValueError as error:  # from msgspec or from decoding UTF-8
        raise CorruptError(f"{path} is not readable: {error}", remedy=_AGAIN) from error
    if meta.version != META_VERSION:
        raise CorruptError(
            f"{path} has version {meta.version}, {META_VERSION} is read", remedy=_AGAIN
        )
    return meta


def sha256(path: Path) -> str:
    """Hex digest of a file.

    Raises:
        InputError: it is missing. ReadError: the disk or the network failed.
    """
    digest = hashlib.sha256()
    with contextlib.closing(BlockReader(path)) as reader:
        for piece in reader.pieces():
            digest.update(piece)
    return digest.hexdigest()


def verify(path: str | Path) -> list[str]:
    """Check every byte against ``meta.json`` and the digests; returns what was checked.

    For a bare pair without digests, only the format can be checked.

    Raises:
        CorruptError: names the first file that differs and, with digests, the position. InputError:
            one is missing. ReadError: the disk or the network failed.
    """
    data = Dataset(path)
    if data.meta is None:
        return [_check_bin(data.split(SPLITS[0]), "")]
    checked = [_check(data.path / "tokenizer.json", data.meta.tokenizer_sha256)]
    for split, meta in data.meta.splits.items():
        tokens = data.split(split)
        if tokens.num_tokens != meta.tokens or tokens.documents.size - 1 != meta.documents:
            raise CorruptError(
                f"{tokens.prefix} does not have the counts in meta.json", remedy=_AGAIN
            )
        checked.append(_check(idx_path(tokens.prefix), meta.idx_sha256))
        checked.append(_check_bin(tokens, meta.bin_sha256))
    return checked


def write_digests(path: str | Path) -> list[Path]:
    """Recompute the block digests of every ``.bin`` of ``path``; returns the files written.

    Each ``.bin`` of a prepared folder is compared with ``meta.json`` first, so that damage
    never gets valid digests.

    Raises:
        CorruptError: a ``.bin`` of the folder is not the recorded one. InputError: one is missing,
            or the folder cannot be written. ReadError: the disk or the network failed.
    """
    data = Dataset(path)
    recorded = {} if data.meta is None else data.meta.splits
    written = []
    for split in recorded or SPLITS[:1]:
        prefix = data.prefix(split)
        found, digests, num_bytes = _digest(bin_path(prefix))
        if split in recorded:
            _compare(bin_path(prefix), found, recorded[split].bin_sha256)
        try:
            written.append(digests_module.write_digests(prefix, num_bytes, digests))
        except OSError as error:
            raise InputError(
                f"cannot write beside {prefix}: {error.strerror}",
                remedy="check disk space and permissions",
            ) from error
    return written


def _digest(path: Path) -> tuple[str, Digests, int]:
    """(SHA-256, digests of blocks, bytes) of a file, in one pass."""
    with contextlib.closing(BlockReader(path)) as reader:
        blocks, whole = digests_module.digest_all(reader)
        return whole, blocks, reader.num_bytes


def _check(path: Path, expected: str) -> str:
    return _compare(path, sha256(path), expected)


def _compare(path: Path, found: str, expected: str) -> str:
    if found != expected:
        raise CorruptError(
            f"{path} has SHA-256 {found[:16]}..., meta.json says {expected[:16]}...",
            remedy=_AGAIN,
        )
    return f"{path}: SHA-256 {found[:16]}... as recorded"


def _check_bin(tokens: TokenFile, expected: str) -> str:
    """Blocks first, because they tell the position."""
    path = bin_path(tokens.prefix)
    counts = f"{path}: {tokens.num_sequences} sequences, {tokens.num_tokens} tokens, format valid"
    if not expected and not tokens.has_digests:
        return counts
    found, blocks, num_bytes = _digest(path)
    if tokens.has_digests:
        wrong = np.flatnonzero(blocks != tokens.digests())
        if wrong.size:
            start = int(wrong[0]) * BLOCK_BYTES
            raise wrong_block(path, start, min(start + BLOCK_BYTES, num_bytes))
        counts = f"{path}: {blocks.size} blocks as in {digests_path(tokens.prefix).name}"
    return f"{counts}, {_compare(path, found, expected).partition(': ')[2]}" if expected else counts
