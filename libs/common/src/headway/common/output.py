"""Results of a command: JSON for programs, text and tables for people; rich draws on a terminal.

Heavy imports wait until something is drawn, so that ``--help`` is fast.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from headway.common.printable import printable

GAP = "  "
"""Between two columns of a table that is not on a terminal."""


@dataclass(frozen=True)
class Table:
    """Rows of cells, None being "-"; a column of numbers only is aligned to the right."""

    rows: Sequence[Sequence[object]]
    header: Sequence[str] = ()

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold only numbers."""
        cells = zip(*self.rows, strict=True)
        return [all(c is None or isinstance(c, int | float) for c in column) for column in cells]

    @property
    def text(self) -> list[list[str]]:
        """The cells as they are printed: without what would steer a terminal."""
        return [["-" if c is None else printable(str(c)) for c in row] for row in self.rows]

    def lines(self) -> list[str]:
        """Without a terminal: each column is as wide as its longest cell."""
        rows = [list(self.header), *self.text] if self.header else self.text
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        aligned = [
            [
                cell.rjust(width) if is_number else cell.ljust(width)
                for cell, width, is_number in zip(row, widths, self.numeric, strict=True)
            ]
            for row in rows
        ]
        return [GAP.join(row).rstrip() for row in aligned]


def emit(data: Any, as_json: bool, lines: Iterable[str | Table]) -> None:
    """Print ``data`` as one line of JSON, or ``lines`` for people."""
    if as_json:
        print(to_json(data), flush=True)
        return
    for line in lines:
        if isinstance(line, str):
            print("\n".join(map(printable, line.split("\n"))), flush=True)
        elif line.rows and sys.stdout.isatty():
            _draw(line)
        elif line.rows:
            print("\n".join(line.lines()), flush=True)


def _draw(table: Table) -> None:
    """On a terminal: long cells are folded inside their column."""
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=None, show_header=bool(table.header), pad_edge=False)
    header = table.header or [""] * len(table.rows[0])
    for name, is_number in zip(header, table.numeric, strict=True):
        justify: Any = "right" if is_number else "left"
        drawn.add_column(name, justify=justify, no_wrap=is_number, overflow="fold")
    for row in table.text:
        drawn.add_row(*map(Text, row))
    Console(highlight=False).print(drawn)


def to_json(data: Any) -> str:
    """One line of JSON from plain values, dataclasses and messages; inf and nan are null."""
    return json.dumps(_plain(data), allow_nan=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "__struct_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def mebibytes(nbytes: int | None) -> str:
    """A size for people: ``12.3 MiB``, or ``-`` where there is none."""
    return "-" if nbytes is None else f"{nbytes / 2**20:.1f} MiB"


def counted(number: int, one: str, many: str = "") -> str:
    """``1 step``, ``2 steps``; ``many`` where it is not ``one`` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"
