"""What is in a prepared corpus: its sources, the lengths of its documents, its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from headway.dataloader import Dataset

SPLITS = ("train", "validation")
AT_THE_TOP = "(files at the top)"
COUNTED_TOKENS = 20_000_000
"""Larger splits are sampled: this many tokens, from evenly spaced documents."""
LENGTHS = {
    "from_tokens": pl.Int64,
    "to_tokens": pl.Int64,
    "documents": pl.Int64,
    "share": pl.Float64,
    "tokens_share": pl.Float64,
}
FREQUENT = {
    "place": pl.Int64,
    "id": pl.Int64,
    "text": pl.String,
    "count": pl.Int64,
    "share": pl.Float64,
    "cumulative": pl.Float64,
}

Counts = npt.NDArray[np.int64]


def document_lengths(data: Dataset, split: str = "train") -> Counts:
    """Tokens of each document, its end-of-text token included."""
    tokens = data.split(split)
    ends = np.concatenate([[0], np.cumsum(tokens.lengths, dtype=np.int64)])
    lengths: Counts = np.diff(ends[tokens.documents])
    return lengths


def splits(data: Dataset) -> pl.DataFrame:
    """One row per split: ``documents``, ``tokens``, ``share`` of all tokens, ``bytes_per_token``.

    ``bytes_per_token``, of text over all tokens, the end-of-text ones included, is null for data
    that another program prepared.
    """
    rows = []
    for split in SPLITS if data.meta is not None else SPLITS[:1]:
        lengths = document_lengths(data, split)
        meta = data.meta.splits.get(split) if data.meta is not None else None
        total = int(lengths.sum())
        per_token = meta.text_bytes / total if meta is not None and total else None
        rows.append((split, len(lengths), total, per_token))
    schema = ("split", "documents", "tokens", "bytes_per_token")
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.with_columns((pl.col("tokens") / pl.col("tokens").sum()).alias("share"))


def sources(keys: Sequence[str] | None, lengths: Counts, source: str) -> pl.DataFrame:
    """One row per part of the source, the largest first: part, documents, tokens, share of tokens.

    A part is a folder at the top of the source, or a file with many documents (``.jsonl``). Without
    ``keys``, the names of the documents, all of it is one part called ``source``.
    """
    names = [source] * len(lengths) if keys is None else [_part(key) for key in keys]
    frame = pl.DataFrame({"part": names, "tokens": lengths})
    return (
        frame.group_by("part")
        .agg(pl.len().cast(pl.Int64).alias("documents"), pl.col("tokens").sum())
        .with_columns((pl.col("tokens") / pl.col("tokens").sum()).alias("share"))
        .sort("tokens", "part", descending=[True, False])
    )


def length_histogram(lengths: Counts) -> pl.DataFrame:
    """Documents by length, a bin for each doubling: columns ``LENGTHS``; shares of all.

    A bin holds the lengths from ``from_tokens`` up to, not including, ``to_tokens``.
    """
    if not len(lengths):
        return pl.DataFrame(schema=LENGTHS)
    bins = np.log2(np.maximum(lengths, 1)).astype(np.int64)
    rows = []
    for place in range(int(bins.min()), int(bins.max()) + 1):
        inside = lengths[bins == place]
        parts = len(inside) / len(lengths), float(inside.sum() / lengths.sum())
        rows.append((2**place, 2 ** (place + 1), len(inside), *parts))
    return pl.DataFrame(rows, schema=LENGTHS, orient="row")


def token_counts(data: Dataset) -> tuple[Counts, bool]:
    """How often each token id occurs in the training split, and whether all of it was counted."""
    tokens = data.split("train")
    every = max(1, -(-tokens.num_tokens // COUNTED_TOKENS))
    counts = np.zeros(data.vocab_size or 1, np.int64)
    for sequence in range(0, tokens.num_sequences, every):
        found = np.bincount(tokens.sequence(sequence), minlength=len(counts)).astype(np.int64)
        if len(found) > len(counts):  # the vocabulary of a bare pair is not known
            counts = np.concatenate([counts, np.zeros(len(found) - len(counts), np.int64)])
        counts += found
    return counts, every == 1


def frequent_tokens(counts: Counts, tokenizer: Any, number: int = 15) -> pl.DataFrame:
    """The most frequent tokens, columns ``FREQUENT``; ``text`` is quoted, so that blanks show."""
    order = np.argsort(-counts, kind="stable")[:number]
    shares = counts[order] / max(1, int(counts.sum()))
    columns = [
        range(1, len(order) + 1), order.tolist(), [token_text(tokenizer, int(i)) for i in order],
        counts[order].tolist(), shares.tolist(), np.cumsum(shares).tolist(),
    ]  # fmt: skip
    return pl.DataFrame(dict(zip(FREQUENT, columns, strict=True)), schema=FREQUENT)


def token_text(tokenizer: Any, token: int) -> str:
    """One token as a quoted text; a part of a character shows as U+FFFD."""
    if tokenizer is None:
        return "(no tokenizer)"
    return "end of text" if token == tokenizer.eod_id else repr(tokenizer.decode([token]))


def _part(key: str) -> str:
    folder, slash, _ = key.partition("/")
    if slash:
        return f"{folder}/"
    return key.rpartition("#")[0] or AT_THE_TOP
