"""Text to tokens and back, with the tokenizer of the run's corpus."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from headway.common.errors import HeadwayError, InputError
from headway.console.folder.records import RunRecords
from headway.dataloader import Dataset
from headway.trainer.config import RunConfig


def corpus(config: RunConfig) -> Dataset | None:
    """The text that a run trains on, None where it is not on this machine."""
    with contextlib.suppress(HeadwayError):
        return Dataset(config.data.path)
    return None


def check_text(prompt: str) -> None:
    """Raises InputError when the prompt holds bytes that are not UTF-8."""
    if not prompt.isascii() and prompt != prompt.encode(errors="replace").decode():
        raise InputError("the prompt is not valid UTF-8", remedy="check the shell's encoding")


def encode(config: RunConfig, prompt: str) -> tuple[int, ...]:
    """The tokens of ``prompt``, after the one that begins a text.

    Raises:
        InputError: the corpus with its tokenizer is not on this machine, or the prompt is not text.
    """
    check_text(prompt)
    data = corpus(config)
    if data is None or data.meta is None:
        raise InputError(
            f"{config.data.path} holds no prepared corpus, whose tokenizer the prompt needs",
            remedy="give the command on the machine that has the corpus",
        )
    return (data.meta.eod_id, *(data.tokenizer.encode(prompt) if prompt else ()))


def decode(tokens: Sequence[int], data: Dataset | None) -> str:
    """The text of ``tokens`` without the ends of documents; empty without the corpus."""
    if data is None or data.meta is None:
        return ""
    inside = [token for token in tokens if token != data.meta.eod_id]
    return str(data.tokenizer.decode(inside))


def _tokens(text: str) -> list[int]:
    """Token ids; none if a flipped bit has damaged their JSON."""
    try:
        return list(msgspec.json.decode(text, type=list[int]))
    except msgspec.MsgspecError:
        return []


def final_sample(run: RunRecords) -> str:
    """The text that the model wrote at the end of the run, empty if it wrote none."""
    newest = "SELECT tokens FROM samples WHERE sequence = 0 ORDER BY generation DESC LIMIT 1"
    for (tokens_json,) in run.query(newest):
        return decode(_tokens(tokens_json), corpus(run.config)).strip("\n")
    if former := run.fact("sample"):  # where an older version kept it
        return decode(json.loads(former)["tokens"], corpus(run.config)).strip("\n")
    return ""


def samples(run: RunRecords) -> list[dict[str, Any]]:
    """Every text that the model has written, the oldest first: step, prompt, text, generation.

    ``step`` counts the completed steps; the last one of a finished run is at its end.
    """
    return _samples(run, "ORDER BY rowid")


def result_of(run: RunRecords, sequence: int) -> list[dict[str, Any]]:
    """What the command with this sequence has brought: no entry yet, or one per attempt."""
    sql = "SELECT step, loss FROM evaluations WHERE sequence = ? ORDER BY rowid"
    losses = [{"step": step, "loss": loss} for step, loss in run.query(sql, (sequence,))]
    return losses or _samples(run, "WHERE sequence = ? ORDER BY rowid", (sequence,))


def _samples(run: RunRecords, which: str, values: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    columns = "step, generation, tokens, num_prompt_tokens"
    rows = run.query(f"SELECT {columns} FROM samples {which}", values)
    data, found = corpus(run.config) if rows else None, []
    for step, generation, tokens_json, num_prompt in rows:
        tokens = _tokens(tokens_json)
        found.append(
            {
                "step": step,
                "prompt": decode(tokens[:num_prompt], data),
                "text": decode(tokens[num_prompt:], data),
                "generation": generation,
            }
        )
    return found


class Results:
    """The results of evaluations and samples that people asked for, as lines; each once."""

    def __init__(self, run: RunRecords) -> None:
        self._run = run
        self._seen = {table: self._newest(table) for table in ("evaluations", "samples")}

    def read(self) -> list[tuple[float, str]]:
        """(Unix time, line) of what came since the last call."""
        lines: list[str] = []
        for _, step, loss in self._new("evaluations", "step, loss"):
            shown = "not finite" if loss is None else f"{loss:.4f}"
            lines.append(f"validation loss after step {step}: {shown}")
        rows = self._new("samples", "step, tokens")
        data = corpus(self._run.config) if rows else None
        for _, step, tokens_json in rows:
            written = decode(_tokens(tokens_json), data)
            lines.append(f"written after step {step}: {written!r}")
        return [(time.time(), line) for line in lines]

    def _new(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        sql = (
            f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? AND sequence > 0 ORDER BY rowid"
        )
        rows = self._query(sql, (self._seen[table],))
        self._seen[table] = max([self._seen[table], *(int(row[0]) for row in rows)])
        return rows

    def _newest(self, table: str) -> int:
        rows = self._query(f"SELECT MAX(rowid) FROM {table}")
        return int(rows[0][0] or 0) if rows else 0

    def _query(self, sql: str, values: tuple[int, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._run.query(sql, values)
        except sqlite3.OperationalError:  # a journal of an older version has no such column
            return []
