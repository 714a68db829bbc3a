"""How does text become a prepared folder? Read, split, learn a vocabulary, encode, put it in place at once.

Nothing is visible at the target before all of it is there (``place``). A lock lets the second of
two runs wait and then find the work done; what an interrupted run left is brought back or swept
away by the next. Memory: all texts once, each let go when it is encoded, and what the trainer of
the vocabulary keeps.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
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
from headway.dataloader.formats import TokenFileWriter, bin_path, idx_path, token_dtype
from headway.dataloader.place import draft_of, put, recover, sweep
from headway.dataloader.sources import Document, read_source
from headway.dataloader.tokenizer import Tokenizer
from headway.dataloader.trouble import printable

Say = Callable[[str], None]

_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


@dataclass(frozen=True)
class Prepared:
    """The folder, its description, and whether this call made it or found it."""

    path: Path
    meta: Meta
    was_there: bool


def prepare(
    config: DataConfig, *, force: bool = False, cache: Path | None = None, say: Say | None = None
) -> Prepared:
    """Make ``config.path`` from ``config.source``; the same text and settings again is a no-op.

    ``cache`` keeps downloads (default ``~/.cache/headway``); ``say`` receives a line per stage.

    Raises:
        InputError: no such source, a folder that cannot be written, or one that holds something else and
            not ``force``.
    """
    tell = say or (lambda _line: None)
    target = Path(config.path).expanduser()
    with _locked(target, tell) as own:
        _refuse_foreign(target)
        if recover(target):
            tell(f"{target} is back: an interrupted run had moved it away")
        tell(f"reading {config.source}")
        documents = read_source(config.source, cache=cache)
        sweep(target, own)
        digest = corpus_hash(documents)
        if not force and (found := _found(target, config, digest)) is not None:
            tell(f"{target} is already prepared from {config.source} (corpus {digest[:16]})")
            return Prepared(target, found, was_there=True)
        try:
            meta = _build(draft_of(target, own), documents, digest, config, tell)
            put(target, own)
        except OSError as error:
            raise InputError(
                f"cannot write {target}: {error.strerror}", remedy="check disk space and rights"
            ) from error
        finally:
            recover(target)
            sweep(target, own)
        return Prepared(target, meta, was_there=False)


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
    """Where the document stands in [0, 1): by SHA-256 of its key, so adding others moves none."""
    return (
        int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:6], "big")
        / 2**48
    )


def split_documents(documents: Sequence[Document], fraction: float) -> dict[str, list[Document]]:
    """Documents per split, in order; neither split is left empty.

    A single document is cut at a line, its end going to validation; of few documents, the one nearest
    the bound moves.

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
    """Cross-entropy per validation token under training unigrams, nats; counts per id, add-one smoothed."""
    log_p = np.log((train + 1) / (train.sum() + train.size))
    return float(-(validation * log_p).sum() / validation.sum())


def _build(
    draft: Path, documents: list[Document], digest: str, config: DataConfig, tell: Say
) -> Meta:
    """Write all files of the folder; ``documents`` is emptied."""
    draft.mkdir(parents=True)
    parts = split_documents(documents, config.validation_fraction)
    documents.clear()
    tell(f"training a vocabulary of {config.vocab_size} on {len(parts['train'])} documents")
    tokenizer = Tokenizer.train(
        (_clean(document.text) for document in parts["train"]), config.vocab_size
    )
    tokenizer.save(draft / "tokenizer.json")
    dtype = np.dtype(token_dtype(tokenizer.vocab_size))
    splits, counts = {}, {}
    for split in list(parts):
        part = deque(parts.pop(split))
        tell(f"encoding {len(part)} documents of {split}")
        splits[split], counts[split] = _encode(draft / split, part, tokenizer, dtype)
    meta = Meta(
        version=META_VERSION,
        source=printable(config.source),
        corpus_sha256=digest,
        vocab_size=tokenizer.vocab_size,
        asked_vocab_size=config.vocab_size,
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


def _encode(
    prefix: Path, documents: deque[Document], tokenizer: Tokenizer, dtype: np.dtype[np.generic]
) -> tuple[SplitMeta, npt.NDArray[np.int64]]:
    """Encode and write; ``documents`` is emptied on the way."""
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    num_documents, text_bytes = len(documents), 0

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
    """JSON can spell a lone surrogate, which is no character and cannot be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _refuse_foreign(target: Path) -> None:
    """Whatever was asked, ``--force`` too: what we did not make is not replaced."""
    ours = not target.exists() or (
        target.is_dir() and ((target / "meta.json").exists() or not any(target.iterdir()))
    )
    if not ours:
        raise InputError(f"{target} exists and is no prepared data", remedy="choose another --out")


def _found(target: Path, config: DataConfig, digest: str) -> Meta | None:
    """The description of what is there if it is what is wanted, None if nothing usable is there."""
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
        raise  # nothing says that it is damaged
    except HeadwayError:
        return None  # damaged or half-deleted: made again
    same = (meta.corpus_sha256, meta.asked_vocab_size, meta.validation_fraction) == (
        digest,
        config.vocab_size,
        config.validation_fraction,
    )
    if not same:
        raise InputError(
            f"{target} holds corpus {meta.corpus_sha256[:16]} of {meta.source!r} "
            f"(vocabulary of {meta.asked_vocab_size} asked for), asked was {digest[:16]} of {config.source!r} "
            f"({config.vocab_size})",
            remedy="choose another --out, or replace it with --force",
        )
    return meta if intact else None


@contextlib.contextmanager
def _locked(target: Path, tell: Say) -> Iterator[str]:
    """Only this process works on ``target``; gives the name for ``place``, "" with the lock.

    The lock's file goes at the end; whoever waited for it makes another. Without a lock, where the
    file system has none, the name is this process's own.
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
                tell(
                    f"warning: {target.parent} has no file locks: of two runs at once the last wins"
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
    """Wait for the lock; False where the file system offers none."""
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
