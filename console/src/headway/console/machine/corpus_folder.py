"""Names the folder of a corpus after its source, its tokenizer and its vocabulary."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

from headway.common.errors import HeadwayError, InputError
from headway.dataloader.config import DataConfig
from headway.trainer.config import RunConfig

_HASH_CHARS = 8


def own_corpus_folder(config: RunConfig) -> RunConfig:
    """The configuration with a folder of its own for a corpus that was given without ``data.path``.

    The default folder holds the default source with a vocabulary of its own. Any other corpus gets
    ``derived_folder``; one that was prepared in ``data/my_texts`` before is used from there.

    Raises:
        InputError: ``data.tokenizer`` cannot be read.
    """
    data = config.data
    if data.path != DataConfig.path or _is_default(data):
        return config
    plain = Path(DataConfig.path).with_name(_stem(data))
    path = plain if _holds(plain, config) else derived_folder(config)
    return dataclasses.replace(config, data=dataclasses.replace(data, path=str(path)))


def is_derived(config: RunConfig) -> bool:
    """Whether ``data.path`` is the folder that the corpus gets when none is given."""
    path = Path(config.data.path).resolve()
    return not _is_default(config.data) and path == derived_folder(config).resolve()


def derived_folder(config: RunConfig) -> Path:
    """``data/NAME-HASH``: hash of the path of the source, the tokenizer and the vocabulary's size.

    Raises:
        InputError: ``data.tokenizer`` cannot be read.
    """
    data = config.data
    source = str(Path(data.source).expanduser().resolve())
    vocabulary = tokenizer_sha256(data) + data.end if data.tokenizer else str(asked_vocab(config))
    found = hashlib.sha256("\0".join((source, vocabulary)).encode("utf-8", "surrogateescape"))
    name = f"{_stem(data)}-{found.hexdigest()[:_HASH_CHARS]}"
    return Path(DataConfig.path).with_name(name)


def asked_vocab(config: RunConfig) -> int:
    """Tokens of the vocabulary that a run trains: the model must know them all."""
    return min(config.data.vocab_size, config.model.vocab_size)


def tokenizer_sha256(data: DataConfig) -> str:
    """SHA-256 of the file ``data.tokenizer``. Raises InputError if it cannot be read."""
    try:
        return hashlib.sha256(Path(data.tokenizer).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            f"data.tokenizer={data.tokenizer!r} cannot be read: {error.strerror}",
            remedy="give a tokenizer.json, or leave data.tokenizer out",
        ) from error


def _is_default(data: DataConfig) -> bool:
    return data.source == DataConfig.source and not data.tokenizer


def _stem(data: DataConfig) -> str:
    return Path(data.source).expanduser().resolve().stem or "corpus"


def _holds(folder: Path, config: RunConfig) -> bool:
    """Whether ``folder`` was prepared from this source with this vocabulary."""
    from headway.dataloader import Dataset

    data = config.data
    try:
        meta = Dataset(folder).meta
    except HeadwayError:
        return False
    if meta is None or Path(meta.source).resolve() != Path(data.source).resolve():
        return False
    if data.tokenizer:
        return meta.tokenizer_sha256 == tokenizer_sha256(data)
    return meta.asked_vocab_size == asked_vocab(config)
