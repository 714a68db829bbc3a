"""Cuts long texts where a tokenizer splits them anyway, so that the pieces have the same ids.

A tokenizer needs some 200 bytes of memory for each byte of a text. GPT-2's pattern and those after
it never join a letter or digit with the white space behind it, so a cut there changes nothing; a
vocabulary in which a space begins the word after it needs that space taken away. Which of the two
applies, if any, is tried out on the beginning of each long text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

PIECE_CHARS = 1 << 15
_LONGEST_CHARS = 1 << 20
_TRIED_CHARS = 1 << 15
_TRIED_PIECE_CHARS = 1 << 9
_WORDS = "\nplain words of a text" * 100
_SPACE = re.compile(r"(?s).*[^\W_](?=\s)")
_ONE_SPACE = re.compile(r"(?s).*[^\W_](?= [^\W_])")

Encode = Callable[[list[str]], list[list[int]]]


class Cut(Enum):
    """How texts may be cut: before white space, at a space that is dropped, or not at all."""

    BEFORE_SPACE = "before"
    AT_SPACE = "at"
    NEVER = "never"


def cut_pieces(
    pieces: Iterable[str], cut: Cut = Cut.BEFORE_SPACE, size: int = PIECE_CHARS
) -> Iterator[str]:
    """The text that consists of ``pieces``, in pieces of at most ``size`` characters.

    Text without white space gets longer pieces, of at most 1 Mi characters; such a cut may separate
    characters that would have been one token.
    """
    rest = ""
    for piece in pieces:
        rest += piece
        while len(rest) > size and cut is not Cut.NEVER:
            at = _last_cut(rest, cut, size)
            if at is None:
                break
            yield rest[:at]
            rest = rest[at + (cut is Cut.AT_SPACE) :]
    if rest:
        yield rest


def _last_cut(text: str, cut: Cut, size: int) -> int | None:
    pattern = _SPACE if cut is Cut.BEFORE_SPACE else _ONE_SPACE
    reach = size
    while reach < _LONGEST_CHARS:
        if found := pattern.match(text, 0, reach + 2):
            return found.end()
        if reach >= len(text):
            return None
        reach *= 4
    return _LONGEST_CHARS if len(text) > _LONGEST_CHARS else None


def best_cut(beginning: str, encode: Encode) -> Cut:
    """The cut after which the pieces of ``beginning`` have its ids.

    Some tokenizers merge across white space; a text of theirs stays whole.
    """
    tried = beginning[:_TRIED_CHARS] + _WORDS  # which has places to cut in any case
    (whole,) = encode([tried])
    for cut in (Cut.BEFORE_SPACE, Cut.AT_SPACE):
        pieces = list(cut_pieces([tried], cut, _TRIED_PIECE_CHARS))
        if list(itertools.chain(*encode(pieces))) == whole:
            return cut
    return Cut.NEVER


def encoded(documents: Iterable[Iterable[str]], encode: Encode) -> Iterator[tuple[list[int], bool]]:
    """Ids of each document, in parts, and whether the document ends with the part.

    ``encode`` gets batches of about 512 Ki characters, which it may spread over all cores.
    """
    batch: list[str] = []
    ends: list[bool] = []
    num_chars = 0
    for pieces in documents:
        for text, is_end in _with_end(_cut_document(pieces, encode)):
            batch.append(text)
            ends.append(is_end)
            num_chars += len(text)
            if num_chars >= 16 * PIECE_CHARS or len(batch) >= PIECE_CHARS:
                yield from zip(encode(batch), ends, strict=True)
                batch, ends, num_chars = [], [], 0
    if batch:
        yield from zip(encode(batch), ends, strict=True)


def _cut_document(pieces: Iterable[str], encode: Encode) -> Iterator[str]:
    beginning, rest = "", iter(pieces)
    for piece in rest:
        beginning += piece
        if len(beginning) > PIECE_CHARS:
            break
    if len(beginning) <= PIECE_CHARS:
        yield beginning
        return

    def whole() -> Iterator[str]:
        yield beginning
        yield from rest

    yield from cut_pieces(whole(), best_cut(beginning, encode))


def _with_end(pieces: Iterable[str]) -> Iterator[tuple[str, bool]]:
    held: str | None = None
    for piece in pieces:
        if held is not None:
            yield held, False
        held = piece
    if held is not None:
        yield held, True
