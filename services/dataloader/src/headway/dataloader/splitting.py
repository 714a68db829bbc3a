"""Splits a source into documents for training and for validation, by a hash of their keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headway.common.errors import InputError
from headway.dataloader.config import SPLITS
from headway.dataloader.sources import AnyDocument, LargeDocument


class CorpusHash:
    """SHA-256 over keys and texts in order, each preceded by its length; identifies a source."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, document: AnyDocument) -> int:
        """Take the next document; returns its characters. Large ones are read twice."""
        key = document.key.encode("utf-8", "surrogateescape")
        self._digest.update(len(key).to_bytes(8, "little") + key)
        sizes = [(len(piece), len(_bytes(piece))) for piece in document.pieces()]
        self._digest.update(sum(size for _, size in sizes).to_bytes(8, "little"))
        for piece in document.pieces():
            self._digest.update(_bytes(piece))
        return sum(chars for chars, _ in sizes)

    def hexdigest(self) -> str:
        """Return the digest of all documents so far."""
        return self._digest.hexdigest()


@dataclass(frozen=True)
class Splits:
    """Which documents of a source belong to which split; neither split is left empty.

    A single document is split at a line, with its end going to validation; with few documents, the
    one nearest to the bound is moved.
    """

    documents: Iterable[AnyDocument]
    fraction: float
    num_chars: int
    """Number of characters in all texts."""
    corpus_sha256: str
    counts: dict[str, int]
    """Documents per split."""
    _moved: str
    _cut: int | None

    @classmethod
    def of(cls, documents: Iterable[AnyDocument], fraction: float) -> Splits:
        """Go through ``documents`` once.

        Raises:
            InputError: there is none, or one of one character.
        """
        digest, num_chars, counts = CorpusHash(), 0, dict.fromkeys(SPLITS, 0)
        lowest, highest, only = (2.0, ""), (-1.0, ""), None
        for document in documents:
            num_chars += digest.add(document)
            place = _place(document.key)
            lowest, highest = (
                min(lowest, (place, document.key)),
                max(highest, (place, document.key)),
            )
            counts[_split(place, fraction)] += 1
            only = document
        cut, moved = None, ""
        if sum(counts.values()) == 1 and only is not None:
            cut, counts = _cut_at(only, num_chars, fraction), dict.fromkeys(SPLITS, 1)
        elif only is not None and not all(counts.values()):
            moved = lowest[1] if not counts["validation"] else highest[1]
            counts = {split: count - 1 if count else 1 for split, count in counts.items()}
        return cls(documents, fraction, num_chars, digest.hexdigest(), counts, moved, cut)

    def part(self, split: str) -> Iterator[AnyDocument]:
        """The documents of ``split``, in order."""
        for document in self.documents:
            if self._cut is not None:
                yield _half(document, split, self._cut)
                continue
            found = _split(_place(document.key), self.fraction)
            if (found == split) != (document.key == self._moved):
                yield document


def _split(place: float, fraction: float) -> str:
    return SPLITS[place < fraction]


def _place(key: str) -> float:
    """Return the position of the document in [0, 1), from the SHA-256 of its key.

    It does not depend on the other documents.
    """
    return (
        int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:6], "big")
        / 2**48
    )


def _cut_at(document: AnyDocument, num_chars: int, fraction: float) -> int:
    """The last beginning of a line before the bound, or the bound itself."""
    if num_chars < 2:
        raise InputError("the source holds one character", remedy="give more text")
    bound = min(max(int(num_chars * (1 - fraction)), 1), num_chars - 1)
    line = start = 0
    for piece in document.pieces():
        line = start + at + 1 if (at := piece.rfind("\n", 0, max(bound - start, 0))) >= 0 else line
        start += len(piece)
    return line or bound


def _half(document: AnyDocument, split: str, at: int) -> AnyDocument:
    def read() -> Iterator[str]:
        start = 0
        for piece in document.pieces():
            cut = max(at - start, 0)
            if part := piece[:cut] if split == SPLITS[0] else piece[cut:]:
                yield part
            start += len(piece)

    return LargeDocument(f"{document.key}#{split}", read)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
