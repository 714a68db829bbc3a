"""Drawings for notebooks as plain SVG: curves over steps, and what ranks did in one step.

Text and axes have the colour of the page (``currentColor``); fills are of middle brightness, so all
of it can be read in light and in dark themes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from headway.console.display.formatting import digits
from headway.console.display.html import note_html

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 300, 64, 40, 12
COLOURS = ("#4c8bf5", "#e08a1e", "#2ba36b", "#b565d9", "#d9534f", "#8a8f98")
MAX_POINTS = 1000
"""A curve of more points is thinned: a chart has no more pixels."""
LANE = 26
"""Height of a rank's row, in pixels."""

Point = tuple[float, float]


@dataclass(frozen=True, repr=False)
class Drawing:
    """An SVG with a title and a sentence that explains it."""

    title: str
    svg: str
    note: str = ""

    def __repr__(self) -> str:
        return f"{self.title} (a drawing)" + (f"\n{self.note}" if self.note else "")

    def _repr_html_(self) -> str:
        return f"<div><b>{escape(self.title)}</b>{self.svg}{note_html(self.note)}</div>"


@dataclass(frozen=True)
class Bar:
    """A stretch of one row: ``start`` and ``end`` in the unit of the axis."""

    row: int
    start: float
    end: float
    kind: str
    hint: str = ""
    """Shown where the pointer is."""


def curves(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    x: str,
    y: str,
    levels: Mapping[str, float] | None = None,
    note: str = "",
) -> Drawing:
    """Curves over a shared axis; ``levels`` are dashed horizontal lines with a name."""
    levels = levels or {}
    points = [p for one in series.values() for p in one if math.isfinite(p[1])]
    xs, ys = [p[0] for p in points] or [0.0], [*(p[1] for p in points), *levels.values()] or [0.0]
    across, up = _Scale(min(xs), max(xs), LEFT, WIDTH - 10), _Scale(min(ys), max(ys), HEIGHT, TOP)
    parts = [_axes(across, up, x, y)]
    for index, (name, one) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in _thin(one) if math.isfinite(b))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8">'
            f"<title>{escape(name)}</title></polyline>"
        )
    for name, level in levels.items():
        at = up(level)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{at:.1f}" y2="{at:.1f}" stroke="currentColor"'
            f' stroke-dasharray="5 4" opacity=".7"/>{_text(WIDTH - 12, at - 4, name, "end")}'
        )
    return Drawing(title, _svg(HEIGHT + BOTTOM + 24, parts, list(series)), note)


def bars_in_rows(
    title: str,
    rows: Sequence[str],
    bars: Sequence[Bar],
    *,
    kinds: Sequence[str],
    x: str,
    note: str = "",
) -> Drawing:
    """One row per name with its bars on a common axis, coloured by kind; the last kind is faint."""
    height = TOP + LANE * len(rows)
    last = max((bar.end for bar in bars), default=1.0)
    across = _Scale(0.0, last, LEFT, WIDTH - 10)
    parts = [_ticks(across, height, x)]
    for index, name in enumerate(rows):
        parts.append(_text(LEFT - 6, TOP + LANE * index + LANE * 0.62, name, "end"))
    for bar in bars:
        start, fill = across(bar.start), _fill(kinds.index(bar.kind), faint=len(kinds) - 1)
        parts.append(
            f'<rect x="{start:.2f}" y="{TOP + LANE * bar.row + 3}" height="{LANE - 6}" '
            f'width="{max(0.3, across(bar.end) - start):.2f}" {fill}>'
            f"<title>{escape(bar.hint or bar.kind)}</title></rect>"
        )
    svg = _svg(height + BOTTOM + 24, parts, kinds, faint=len(kinds) - 1)
    return Drawing(title, svg, note)


class _Scale:
    """Values to pixels."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self.low, self.high = low, high if high > low else low + 1.0
        self._first, self._per_unit = first, (last - first) / (self.high - self.low)

    def __call__(self, value: float) -> float:
        return self._first + (value - self.low) * self._per_unit

    def ticks(self, number: int = 6) -> list[float]:
        """Round values within the range."""
        rough = (self.high - self.low) / number
        unit = 10.0 ** math.floor(math.log10(rough))
        size = next(unit * n for n in (1, 2, 5, 10) if unit * n >= rough)
        first = math.ceil(self.low / size - 1e-9)
        return [k * size for k in range(first, math.floor(self.high / size + 1e-9) + 1)]


def _axes(across: _Scale, up: _Scale, x: str, y: str) -> str:
    lines = [_ticks(across, HEIGHT, x)]
    for value in up.ticks(5):
        at = up(value)
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{at:.1f}" y2="{at:.1f}" '
            f'stroke="currentColor" opacity=".15"/>{_text(LEFT - 6, at + 4, digits(value), "end")}'
        )
    turned = f"translate(14 {(HEIGHT + TOP) / 2}) rotate(-90)"
    lines.append(f'<g transform="{turned}">{_text(0, 0, y, "middle")}</g>')
    return "".join(lines)


def _ticks(across: _Scale, bottom: float, x: str) -> str:
    line = (
        f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{bottom}" y2="{bottom}" stroke="currentColor"/>'
    )
    marks = [
        f'<line x1="{across(v):.1f}" x2="{across(v):.1f}" y1="{bottom}" y2="{bottom + 4}" '
        f'stroke="currentColor"/>{_text(across(v), bottom + 17, f"{v:,.6g}", "middle")}'
        for v in across.ticks()
    ]
    return "".join([line, *marks, _text((LEFT + WIDTH) / 2, bottom + 33, x, "middle")])


def _fill(index: int, faint: int) -> str:
    if index == faint:
        return f'fill="{COLOURS[-1]}" fill-opacity=".65"'
    return f'fill="{COLOURS[index % len(COLOURS)]}"'


def _svg(height: float, parts: Sequence[str], legend: Sequence[str], faint: int = -1) -> str:
    at, drawn = float(LEFT), []
    for index, name in enumerate(legend):
        drawn.append(
            f'<rect x="{at:.0f}" y="{height - 18}" width="11" height="11" {_fill(index, faint)}/>'
            f"{_text(at + 16, height - 8, name, 'start')}"
        )
        at += 34 + 6.6 * len(name)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" style="display:block;width:100%;max-width:{WIDTH}px" '
        f'role="img" font-family="sans-serif" font-size="12">{"".join([*parts, *drawn])}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="currentColor">'
        f"{escape(text)}</text>"
    )


def _thin(points: Sequence[Point]) -> Sequence[Point]:
    every = max(1, -(-len(points) // MAX_POINTS))
    return points[::every]
