"""Turns text into a prepared folder: read, split, train a vocabulary, encode, put in place.

Nothing is visible at the target before it is complete (``place``). A lock makes the second of
two runs wait and then find the work done; the next run restores or removes what an
interrupted run left. Memory does not grow with the text, except that of the vocabulary's
trainer with the different words in at most 64 MiB of it: the source is read once per stage.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from headway.common.errors import HeadwayError, InputError
from headway.dataloader.blocks import ReadError
from headway.dataloader.config import DataConfig
from headway.dataloader.dataset import META_VERSION, Dataset, Meta, SplitMeta, read_meta, sha256
from headway.dataloader.document_keys import read_keys, write_keys
from headway.dataloader.formats import TokenFileWriter, bin_path, idx_path, token_dtype
from headway.dataloader.long_texts import cut_pieces
from headway.dataloader.manifest import write_manifest
from headway.dataloader.place import draft_of, put, recover, sweep
from headway.dataloader.sources import AnyDocument, Source, no_text, read_source
from headway.dataloader.splitting import Splits
from headway.dataloader.tokenizer import Tokenizer
from headway.dataloader.trouble import printable

Say = Callable[[str], None]

TRAINED_CHARS = 64 << 20
"""Characters on which a vocabulary is trained at most, taken evenly from all over the texts."""
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


@dataclass(frozen=True)
class Prepared:
    """The folder, its description, and whether this call created it or found it."""

    path: Path
    meta: Meta
    already_prepared: bool


def prepare(
    config: DataConfig, *, force: bool = False, cache: Path | None = None, say: Say | None = None
) -> Prepared:
    """Create ``config.path`` from ``config.source``.

    Repeating it with equal text and settings is a no-op. ``cache`` keeps downloads (default
    ``~/.cache/headway``); ``say`` receives a line per stage.

    Raises:
        InputError: no such source, a folder that cannot be written, or one that holds something
            else and not ``force``.
    """
    report = say or (lambda _line: None)
    target = Path(config.path).expanduser()
    with _locked(target, report) as own:
        _refuse_foreign(target)
        if recover(target):
            report(f"{target} was restored: an interrupted run had moved it away")
        report(f"reading {config.source}")
        source = read_source(config.source, cache=cache)
        splits = Splits.of(source, config.validation_fraction)
        for line in source.left_out.lines():
            report(line)
        if not splits.num_chars:
            raise no_text(config.source)
        sweep(target, own)
        digest = splits.corpus_sha256
        if not force and (found := _found(target, config, digest)) is not None:
            report(f"{target} is already prepared from {config.source} (corpus {digest[:16]})")
            _add_names(target, source, splits)
            return Prepared(target, found, already_prepared=True)
        try:
            meta = _build(draft_of(target, own), source, splits, config, report)
            put(target, own)
        except OSError as error:
            raise InputError(
                f"cannot write {target}: {error.strerror}",
                remedy="check disk space and permissions",
            ) from error
        finally:
            recover(target)
            sweep(target, own)
        return Prepared(target, meta, already_prepared=False)


def unigram_nats(train: npt.NDArray[np.int64], validation: npt.NDArray[np.int64]) -> float:
    """Return the cross-entropy per validation token under training unigrams, in nats.

    Both arguments are counts per id; those of training are smoothed by adding one to each.
    """
    log_p = np.log((train + 1) / (train.sum() + train.size))
    return float(-(validation * log_p).sum() / validation.sum())


def _build(draft: Path, source: Source, parts: Splits, config: DataConfig, report: Say) -> Meta:
    """Write all files of the folder."""
    draft.mkdir(parents=True)
    if config.tokenizer:
        tokenizer = Tokenizer.load(Path(config.tokenizer), end=config.end)
        shutil.copyfile(config.tokenizer, draft / "tokenizer.json")
    else:
        tokenizer = _trained(parts, config.vocab_size, report)
        tokenizer.save(draft / "tokenizer.json")
    dtype = np.dtype(token_dtype(tokenizer.vocab_size))
    splits, counts = {}, {}
    for split, number in parts.counts.items():
        report(f"encoding {number} documents of {split}")
        splits[split], counts[split] = _encode(draft / split, parts, split, tokenizer, dtype)
    write_manifest(draft, config.source, source.files)
    meta = Meta(
        version=META_VERSION,
        source=printable(config.source),
        corpus_sha256=parts.corpus_sha256,
        vocab_size=tokenizer.vocab_size,
        asked_vocab_size=_asked(config),
        validation_fraction=config.validation_fraction,
        eod_id=tokenizer.eod_id,
        dtype=str(dtype),
        unigram_nats=unigram_nats(counts["train"], counts["validation"]),
        tokenizer_sha256=sha256(draft / "tokenizer.json"),
        splits=splits,
    )
    (draft / "meta.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(meta), indent=1) + b"\n"
    )
    return meta


def _asked(config: DataConfig) -> int:
    """Tokens that were requested; 0 with a given tokenizer."""
    return 0 if config.tokenizer else config.vocab_size


def _trained(parts: Splits, vocab_size: int, report: Say) -> Tokenizer:
    """A vocabulary of the training split; of more text than ``TRAINED_CHARS``, of every n-th piece.

    No word is cut, so the vocabulary is that of the uncut texts.
    """
    every = -(-parts.num_chars // TRAINED_CHARS)
    share = "" if every == 1 else f", on a share of 1/{every} of the text"
    report(f"training a vocabulary of {vocab_size} on {parts.counts['train']} documents{share}")
    pieces = (piece for document in parts.part("train") for piece in cut_pieces(_texts(document)))
    return Tokenizer.train(itertools.islice(pieces, 0, None, every), vocab_size)


def _add_names(target: Path, source: Source, parts: Splits) -> None:
    """Write the names of documents and files into a folder that lacks them, if possible.

    The folder has the digest of the source, so they are the same ones in the same order.
    """
    with contextlib.suppress(OSError):
        for split in parts.counts:
            if read_keys(target / split) is None:
                write_keys(target / split, (document.key for document in parts.part(split)))
        write_manifest(target, source.name, source.files)


def _encode(
    prefix: Path, parts: Splits, split: str, tokenizer: Tokenizer, dtype: np.dtype[np.generic]
) -> tuple[SplitMeta, npt.NDArray[np.int64]]:
    """Encode and write the documents of ``split``."""
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    text_bytes = 0
    write_keys(prefix, (document.key for document in parts.part(split)))

    def texts() -> Iterator[Iterable[str]]:
        for document in parts.part(split):
            yield counted(document)

    def counted(document: AnyDocument) -> Iterator[str]:
        nonlocal text_bytes
        for text in _texts(document):
            text_bytes += len(text.encode())
            yield text

    with TokenFileWriter(prefix, dtype) as writer:
        for tokens, is_end in tokenizer.encode_all(texts()):
            if is_end:
                tokens.append(tokenizer.eod_id)
                writer.add(tokens)
            else:
                writer.extend(tokens)
            counts += np.bincount(tokens, minlength=counts.size)
    meta = SplitMeta(
        documents=parts.counts[split],
        tokens=int(counts.sum()),
        text_bytes=text_bytes,
        bin_sha256=sha256(bin_path(prefix)),
        idx_sha256=sha256(idx_path(prefix)),
    )
    return meta, counts


def _texts(document: AnyDocument) -> Iterator[str]:
    return map(_clean, document.pieces())


def _clean(text: str) -> str:
    """JSON can contain a lone surrogate, which is not a character and cannot be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _refuse_foreign(target: Path) -> None:
    """Refuse to replace a folder that Headway did not create, even with ``--force``."""
    ours = not target.exists() or (
        target.is_dir() and ((target / "meta.json").exists() or not any(target.iterdir()))
    )
    if not ours:
        raise InputError(f"{target} exists and is not prepared data", remedy="choose another --out")


def _found(target: Path, config: DataConfig, digest: str) -> Meta | None:
    """The description of the existing folder if it matches, None if there is nothing usable."""
    if not (target / "meta.json").exists():
        return None
    try:
        meta = read_meta(target)
        data = Dataset(target)
        intact = all(
            data.split(split).num_tokens == part.tokens for split, part in meta.splits.items()
        )
        intact = intact and sha256(target / "tokenizer.json") == meta.tokenizer_sha256
    except ReadError:
        raise  # not known to be damaged
    except HeadwayError:
        return None  # damaged or partly deleted: created again
    same = (meta.corpus_sha256, meta.asked_vocab_size, meta.validation_fraction) == (
        digest,
        _asked(config),
        config.validation_fraction,
    )
    if config.tokenizer and meta.tokenizer_sha256 != sha256(Path(config.tokenizer)):
        raise InputError(
            f"{target} was prepared with another tokenizer than {config.tokenizer}",
            remedy="choose another --out, or replace it with --force",
        )
    if config.tokenizer:
        wanted = Tokenizer.load(Path(config.tokenizer), end=config.end)
        if wanted.eod_id != meta.eod_id:
            raise InputError(
                f"documents of {target} end with token {meta.eod_id}, not with "
                f"{wanted.end_of_text!r}",
                remedy="choose another --out, or replace it with --force",
            )
    if not same:
        raise InputError(
            f"{target} was prepared from {meta.source!r} (corpus {meta.corpus_sha256[:16]}, "
            "requested "
            f"vocabulary {meta.asked_vocab_size}), but the configuration has {config.source!r} "
            f"(corpus {digest[:16]}, vocabulary {_asked(config)})",
            remedy="choose another --out, or replace it with --force",
        )
    return meta if intact else None


@contextlib.contextmanager
def _locked(target: Path, report: Say) -> Iterator[str]:
    """Lock ``target`` for this process; yields the name for ``place``, "" with the lock.

    The lock file is removed at the end; a waiting process creates another. If the file system has
    no locks, the name is unique to this process.
    """
    path = target.parent / f".{target.name}.lock"
    while True:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(
                f"cannot write {target.parent}: {error.strerror}", remedy="choose another --out"
            ) from error
        try:
            own = "" if _lock(fd) else _own_name()
            if own:
                report(
                    f"warning: {target.parent} has no file locks: the last of two concurrent "
                    "runs wins"
                )
            if own or _is_at(fd, path):
                try:
                    yield own
                finally:
                    path.unlink(missing_ok=True)
                return
        finally:
            os.close(fd)


def _lock(fd: int) -> bool:
    """Wait for the lock; False if the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _own_name() -> str:
    # containers may share host name and pid
    return f"{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
