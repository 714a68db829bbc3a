"""Turns text into a prepared folder: read, split, train a vocabulary, encode, put in place.

Nothing is visible at the target before it is complete (``place``). A lock makes the second of
two runs wait and then find the work done; the next run restores or removes what an
interrupted run left. Memory: all texts once, each released when it is encoded, and that of
the vocabulary's trainer.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
from headway.dataloader.place import draft_of, put, recover, sweep
from headway.dataloader.sources import TEXT_ENDINGS, Document, left_out, read_source
from headway.dataloader.tokenizer import Tokenizer
from headway.dataloader.trouble import printable

Say = Callable[[str], None]

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
    """Create ``config.path`` from ``config.source``; repeating it with equal text and
    settings is a no-op.

    ``cache`` keeps downloads (default ``~/.cache/headway``); ``say`` receives a line per stage.

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
        if number := left_out(config.source):
            endings = ", ".join(sorted(TEXT_ENDINGS))
            report(f"leaving out {number} files that do not end in {endings}")
        documents = read_source(config.source, cache=cache)
        sweep(target, own)
        digest = corpus_hash(documents)
        if not force and (found := _found(target, config, digest)) is not None:
            report(f"{target} is already prepared from {config.source} (corpus {digest[:16]})")
            _add_keys(target, documents, config.validation_fraction)
            return Prepared(target, found, already_prepared=True)
        try:
            meta = _build(draft_of(target, own), documents, digest, config, report)
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


def corpus_hash(documents: Sequence[Document]) -> str:
    """SHA-256 over keys and texts in order, each preceded by its length."""
    digest = hashlib.sha256()
    for document in documents:
        for part in (
            document.key.encode("utf-8", "surrogateescape"),
            document.text.encode("utf-8", "surrogatepass"),
        ):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _place(key: str) -> float:
    """Position of the document in [0, 1) by SHA-256 of its key, so other
    documents do not change it."""
    return (
        int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:6], "big")
        / 2**48
    )


def split_documents(documents: Sequence[Document], fraction: float) -> dict[str, list[Document]]:
    """Documents per split, in order; neither split is left empty.

    A single document is split at a line, with its end going to validation; with few documents, the
    one nearest to the bound is moved.

    Raises:
        InputError: one document of one character.
    """
    if len(documents) == 1:
        documents = _cut(documents[0], fraction)
        return {"train": [documents[0]], "validation": [documents[1]]}
    places = [_place(document.key) for document in documents]
    if all(place >= fraction for place in places):
        places[places.index(min(places))] = -1.0
    elif all(place < fraction for place in places):
        places[places.index(max(places))] = 2.0
    parts: dict[str, list[Document]] = {"train": [], "validation": []}
    for document, place in zip(documents, places, strict=True):
        parts["validation" if place < fraction else "train"].append(document)
    return parts


def _cut(document: Document, fraction: float) -> list[Document]:
    text = document.text
    if len(text) < 2:
        raise InputError("the source holds one character", remedy="give more text")
    at = min(max(int(len(text) * (1 - fraction)), 1), len(text) - 1)
    line = text.rfind("\n", 0, at) + 1
    at = line or at
    return [
        Document(f"{document.key}#train", text[:at]),
        Document(f"{document.key}#validation", text[at:]),
    ]


def unigram_nats(train: npt.NDArray[np.int64], validation: npt.NDArray[np.int64]) -> float:
    """Cross-entropy per validation token under training unigrams, nats; counts per
    id, add-one smoothed."""
    log_p = np.log((train + 1) / (train.sum() + train.size))
    return float(-(validation * log_p).sum() / validation.sum())


def _build(
    draft: Path, documents: list[Document], digest: str, config: DataConfig, report: Say
) -> Meta:
    """Write all files of the folder; ``documents`` is emptied."""
    draft.mkdir(parents=True)
    parts = split_documents(documents, config.validation_fraction)
    documents.clear()
    if config.tokenizer:
        tokenizer = Tokenizer.load(Path(config.tokenizer))
        shutil.copyfile(config.tokenizer, draft / "tokenizer.json")
    else:
        report(f"training a vocabulary of {config.vocab_size} on {len(parts['train'])} documents")
        tokenizer = Tokenizer.train(
            (_clean(document.text) for document in parts["train"]), config.vocab_size
        )
        tokenizer.save(draft / "tokenizer.json")
    dtype = np.dtype(token_dtype(tokenizer.vocab_size))
    splits, counts = {}, {}
    for split in list(parts):
        part = deque(parts.pop(split))
        report(f"encoding {len(part)} documents of {split}")
        splits[split], counts[split] = _encode(draft / split, part, tokenizer, dtype)
    meta = Meta(
        version=META_VERSION,
        source=printable(config.source),
        corpus_sha256=digest,
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


def _add_keys(target: Path, documents: Sequence[Document], fraction: float) -> None:
    """Write the names of the documents into a folder that was prepared without them, if possible.

    The folder has the digest of ``documents``, so they are the same ones in the same order.
    """
    for split, part in split_documents(documents, fraction).items():
        if read_keys(target / split) is None:
            with contextlib.suppress(OSError):
                write_keys(target / split, [document.key for document in part])


def _encode(
    prefix: Path, documents: deque[Document], tokenizer: Tokenizer, dtype: np.dtype[np.generic]
) -> tuple[SplitMeta, npt.NDArray[np.int64]]:
    """Encode and write; ``documents`` is emptied meanwhile."""
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    num_documents, text_bytes = len(documents), 0
    write_keys(prefix, [document.key for document in documents])

    def texts() -> Iterator[str]:
        nonlocal text_bytes
        while documents:
            text = _clean(documents.popleft().text)
            text_bytes += len(text.encode())
            yield text

    with TokenFileWriter(prefix, dtype) as writer:
        for tokens in tokenizer.encode_all(texts()):
            tokens.append(tokenizer.eod_id)
            writer.add(tokens)
            counts += np.bincount(tokens, minlength=counts.size)
    meta = SplitMeta(
        documents=num_documents,
        tokens=int(counts.sum()),
        text_bytes=text_bytes,
        bin_sha256=sha256(bin_path(prefix)),
        idx_sha256=sha256(idx_path(prefix)),
    )
    return meta, counts


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
