"""A frame with a title, labels with units, and readable figures, for notebooks and terminals.

Cells may carry a bar or a shade. Both are translucent and the text keeps the page's own colour, so
they can be read in light and in dark themes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import polars as pl
from headway.common.output import Table
from headway.console.display import formatting
from headway.console.display.html import note_html

TINT = "76,139,245"
"""Red, green and blue of bars and shades."""
DEEPEST = 0.65
"""Opacity of the darkest shade: text on it stays readable."""


@dataclass(frozen=True)
class Column:
    """How one column of a frame is shown."""

    name: str
    """In the frame."""
    label: str
    """Heading with the unit, as ``wait, ms per step``."""
    format: Callable[[Any], str] = formatting.text
    mark: Literal["", "bar", "shade"] = ""
    """``bar``: its length is the value over the column's highest. ``shade``: over the highest of
    all shaded columns."""

    @property
    def is_text(self) -> bool:
        """Whether it is aligned to the left."""
        return self.format is formatting.text


@dataclass(frozen=True, repr=False)
class Shown:
    """``frame`` is the data; what is shown are its ``columns``."""

    frame: pl.DataFrame
    title: str
    columns: Sequence[Column]
    note: str = ""
    """What the reader needs to know to understand the figures."""

    def __repr__(self) -> str:
        rows = [[c.format(row[c.name]) for c in self.columns] for row in self._rows]
        table = Table(rows, [c.label for c in self.columns]).lines() if rows else ["(nothing)"]
        return "\n".join([self.title, *table, *([self.note] if self.note else [])])

    def _repr_html_(self) -> str:
        head = "".join(
            f'<th style="{_side(c)};max-width:9em;vertical-align:bottom">{escape(c.label)}</th>'
            for c in self.columns
        )
        highest = self._highest()
        body = "".join(
            "<tr>" + "".join(_cell(c, row[c.name], highest[c.name]) for c in self.columns) + "</tr>"
            for row in self._rows
        )
        return (
            f'<div style="overflow-x:auto"><b>{escape(self.title)}</b>'
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"{note_html(self.note)}</div>"
        )

    @property
    def _rows(self) -> list[dict[str, Any]]:
        return self.frame.to_dicts()

    def _highest(self) -> dict[str, float]:
        """The value of a full bar or the deepest shade, by column."""
        own = {c.name: _maximum(self.frame, [c.name]) if c.mark else 0.0 for c in self.columns}
        shaded = max((own[c.name] for c in self.columns if c.mark == "shade"), default=0.0)
        return own | {c.name: shaded for c in self.columns if c.mark == "shade"}


def _maximum(frame: pl.DataFrame, names: Sequence[str]) -> float:
    values = (frame[name].cast(pl.Float64).max() for name in names)
    return max((float(v) for v in values if isinstance(v, float) and math.isfinite(v)), default=0.0)


def _side(column: Column) -> str:
    return f"text-align:{'left' if column.is_text else 'right'};padding:2px 8px"


def _cell(column: Column, value: Any, highest: float) -> str:
    style = f"{_side(column)};white-space:{'pre-wrap' if column.is_text else 'nowrap'}"
    if column.mark and value is not None and highest > 0 and math.isfinite(value):
        part = min(1.0, max(0.0, value / highest))
        if column.mark == "shade":
            style += f";background:rgba({TINT},{DEEPEST * part:.2f})"
        else:
            tint = f"rgba({TINT},.4)"
            style += (
                f";min-width:9em;background:linear-gradient(90deg,{tint} {100 * part:.1f}%,"
                "transparent 0)"
            )
    return f'<td style="{style}">{escape(column.format(value))}</td>'
