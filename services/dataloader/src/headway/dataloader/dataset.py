"""What lies in a prepared folder? Two token files, a tokenizer, and ``meta.json``, which describes them.

train.bin train.idx validation.bin validation.idx tokenizer.json meta.json
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from headway.common.errors import CorruptError, InputError
from headway.dataloader.config import SPLITS
from headway.dataloader.formats import TokenFile, bin_path, idx_path
from headway.dataloader.tokenizer import Tokenizer

META_VERSION = 1
_READ_BYTES = 1 << 20
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
    """Over keys and texts of all documents in order: what was prepared."""
    vocab_size: int
    """Tokens of the tokenizer; ``asked_vocab_size`` may be more when there was little text."""
    asked_vocab_size: int
    validation_fraction: float
    eod_id: int
    dtype: str
    unigram_nats: float
    """Cross-entropy per token of the validation split under the training split's unigrams, add-one
    smoothed.
    """
    tokenizer_sha256: str
    splits: dict[str, SplitMeta]


class Dataset:
    """A prepared folder, or the prefix of one Megatron ``.bin``/``.idx`` pair, which is a training split
    alone.
    """

    def __init__(self, path: str | Path) -> None:
        """Find out what ``path`` is; the token files are opened by ``split``.

        Raises:
            InputError: nothing prepared there. CorruptError: an unreadable ``meta.json``.
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
                remedy="prepare a folder, or name the two pairs train and validation in one",
            )
        return self.path

    def split(self, split: str) -> TokenFile:
        """The split's tokens. Raises InputError or CorruptError, naming the file."""
        return TokenFile(self.prefix(split))

    @property
    def vocab_size(self) -> int | None:
        """Number of token ids, None when only a ``.bin``/``.idx`` pair is known."""
        return None if self.meta is None else self.meta.vocab_size

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer. Raises InputError for a bare pair."""
        if self.meta is None:
            raise InputError(f"{self.path} has no tokenizer", remedy=_PREPARE)
        return Tokenizer.load(self.path / "tokenizer.json")


def read_meta(folder: Path) -> Meta:
    """``meta.json`` of a prepared folder.

    Raises:
        InputError: there is none. CorruptError: it cannot be read, or another version wrote it.
    """
    path = folder / "meta.json"
    try:
        meta = msgspec.json.decode(path.read_bytes(), type=Meta)
    except OSError as error:
        raise InputError(
            f"{folder} holds no prepared data ({path.name}: {error.strerror})", remedy=_PREPARE
        ) from error
    except msgspec.DecodeError as error:
        raise CorruptError(f"{path} is not readable: {error}", remedy=_AGAIN) from error
    if meta.version != META_VERSION:
        raise CorruptError(
            f"{path} has version {meta.version}, {META_VERSION} is read", remedy=_AGAIN
        )
    return meta


def sha256(path: Path) -> str:
    """Hex digest of a file.

    Raises:
        InputError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", remedy=_AGAIN) from error
    return digest.hexdigest()


def verify(path: str | Path) -> list[str]:
    """Check every byte against ``meta.json``, or a bare pair's format; returns what was checked, one line
    each.

    Raises:
        CorruptError: the first file that differs. InputError: one is missing.
    """
    data = Dataset(path)
    if data.meta is None:
        tokens = data.split(SPLITS[0])
        return [
            f"{tokens.prefix}: {tokens.num_sequences} sequences, {tokens.num_tokens} tokens, format valid"
        ]
    checked = [_check(data.path / "tokenizer.json", data.meta.tokenizer_sha256)]
    for split, meta in data.meta.splits.items():
        tokens = data.split(split)
        if tokens.num_tokens != meta.tokens or tokens.documents.size - 1 != meta.documents:
            raise CorruptError(
                f"{tokens.prefix} does not have the counts in meta.json", remedy=_AGAIN
            )
        checked.append(_check(idx_path(tokens.prefix), meta.idx_sha256))
        checked.append(_check(bin_path(tokens.prefix), meta.bin_sha256))
    return checked


def _check(path: Path, expected: str) -> str:
    found = sha256(path)
    if found != expected:
        raise CorruptError(
            f"{path} has SHA-256 {found[:16]}..., meta.json says {expected[:16]}...",
            remedy=_AGAIN,
        )
    return f"{path}: SHA-256 {found[:16]}... as recorded"
