"""Text to tokens and back, with the tokenizer of the run's corpus."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from headway.common.errors import HeadwayError, InputError
from headway.console.folder.records import RunRecords
from headway.controller.client import Sampled
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


def final_sample(run: RunRecords) -> str:
    """The text that the model wrote at the end of the run, empty if it wrote none."""
    found = run.records.samples_of(0)
    if not found:
        return ""
    newest = max(found, key=lambda one: one.generation)
    return decode(newest.tokens, corpus(run.config)).strip("\n")


def samples(run: RunRecords) -> list[dict[str, Any]]:
    """Every text that the model has written, the oldest first: step, prompt, text, generation.

    ``step`` counts the completed steps; the last one of a finished run is at its end.
    """
    return _texts(run, run.records.samples())


def result_of(run: RunRecords, sequence: int) -> list[dict[str, Any]]:
    """What the command with this sequence has brought: no entry yet, or one per attempt."""
    losses = run.records.evaluations_of(sequence)
    if losses:
        return [{"step": one.step, "loss": one.loss} for one in losses]
    return _texts(run, run.records.samples_of(sequence))


def _texts(run: RunRecords, found: Sequence[Sampled]) -> list[dict[str, Any]]:
    data = corpus(run.config) if found else None
    return [
        {
            "step": one.step,
            "prompt": decode(one.tokens[: one.num_prompt_tokens], data),
            "text": decode(one.tokens[one.num_prompt_tokens :], data),
            "generation": one.generation,
        }
        for one in found
    ]


class Results:
    """The results of evaluations and samples that people asked for, as lines; each once."""

    def __init__(self, run: RunRecords) -> None:
        self._run, records = run, run.records
        self._evaluations = records.newest_evaluation_stored()
        self._samples = records.newest_sample_stored()

    def read(self) -> list[tuple[float, str]]:
        """(Unix time, line) of what came since the last call."""
        lines: list[str] = []
        for loss in self._run.records.evaluations_stored(self._evaluations):
            self._evaluations = loss.row
            if loss.sequence > 0:
                shown = "not finite" if loss.loss is None else f"{loss.loss:.4f}"
                lines.append(f"validation loss after step {loss.step}: {shown}")
        texts = self._run.records.samples(self._samples)
        data = corpus(self._run.config) if texts else None
        for text in texts:
            self._samples = text.row
            if text.sequence > 0:
                lines.append(f"written after step {text.step}: {decode(text.tokens, data)!r}")
        return [(time.time(), line) for line in lines]
