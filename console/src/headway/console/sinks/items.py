"""What a sink writes: items in the order of the run's history, each at a number of completed steps.

All x axes count completed steps, as ``headway status`` does: the losses of step index 9 and the
validation loss that follows it are both at 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Scalars:
    """Figures at one place of the x axis."""

    step: int
    unix_s: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class Text:
    """A sentence about the run, such as a recovery; Markdown."""

    step: int
    unix_s: float
    tag: str
    text: str


@dataclass(frozen=True)
class Settings:
    """The configuration that holds from here on: dotted key -> value, and the TOML text."""

    step: int
    unix_s: float
    values: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class Rewind:
    """A recovery or a resume went back: what was written at ``step`` and after it no longer holds.

    The same steps follow again.
    """

    step: int
    unix_s: float


Item = Scalars | Text | Settings | Rewind


class Sink(Protocol):
    """One place that metrics go to. One thread only."""

    commits_at_end: bool
    """Only ``close`` makes what was written durable, so ``commit`` is called after it."""

    def write(self, items: list[Item]) -> None:
        """Write items in order; they count once ``commit`` has returned.

        Raises:
            OSError: the output cannot be written.
        """

    def commit(self) -> dict[str, Any]:
        """Hand everything to the disk; returns what the next process needs to continue from here.

        Raises:
            OSError: the output cannot be written.
        """

    def close(self) -> None:
        """End; what was not committed may be lost."""


class MakeSink(Protocol):
    """Opens a sink."""

    def __call__(self, out: Path, *, run_id: str, name: str, state: Mapping[str, Any]) -> Sink:
        """Continue in the folder ``out`` where ``state``, of the newest ``commit``, left it."""
