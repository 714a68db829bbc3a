"""The text of one training sample, divided into the documents that it consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from headway.common.output import counted
from headway.dataloader import Dataset, Piece

RULE = "-" * 72


@dataclass(frozen=True)
class Part:
    """One document's piece as text."""

    document: str
    """Its name, or its number where names were not kept."""
    first: int
    num_tokens: int
    text: str
    is_end: bool

    @property
    def heading(self) -> str:
        """Which tokens of which document."""
        last = self.first + self.num_tokens - 1
        end = ", its end" if self.is_end else ""
        return f"{self.document}, tokens {self.first:,} to {last:,}{end}"


@dataclass(frozen=True, repr=False)
class SampleView:
    """``parts`` in the order in which the model reads them."""

    title: str
    parts: tuple[Part, ...]
    note: str = ""

    def __repr__(self) -> str:
        lines = [self.title, *([self.note] if self.note else [])]
        for part in self.parts:
            lines += [RULE, part.heading, "", part.text]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = "".join(
            f'<div style="border-left:3px solid currentColor;padding-left:.8em;margin:.6em 0">'
            f'<div style="opacity:.8">{escape(part.heading)}</div>'
            f'<pre style="white-space:pre-wrap;margin:.3em 0">{escape(part.text)}</pre></div>'
            for part in self.parts
        )
        return f"<div><b>{escape(self.title)}</b><div>{escape(self.note)}</div>{parts}</div>"


def view_of(
    pieces: Sequence[Piece],
    data: Dataset,
    keys: Sequence[str] | None,
    title: str,
    note: str = "",
) -> SampleView:
    """``pieces`` of a training sample decoded; token ids for data without a tokenizer."""
    parts = tuple(
        Part(
            f"document {piece.document:,}" if keys is None else keys[piece.document],
            piece.first,
            len(piece.tokens),
            _text(piece, data),
            piece.is_end,
        )
        for piece in pieces
    )
    num_tokens = sum(part.num_tokens for part in parts)
    documents = counted(len(parts), "document")
    return SampleView(f"{title}; {num_tokens:,} tokens of {documents}", parts, note)


def _text(piece: Piece, data: Dataset) -> str:
    if data.meta is None:
        return " ".join(map(str, piece.tokens.tolist()))
    return data.tokenizer.decode(piece.tokens.tolist())
