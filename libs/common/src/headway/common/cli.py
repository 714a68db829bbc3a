"""What all command lines of Headway share: options, exit codes, and how results are printed.

Results go through ``emit``: JSON for programs, text for people, tables drawn by rich on a terminal.
Nothing heavy is imported before there is something to draw, so that ``--help`` answers at once.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from headway.common.errors import HeadwayError, RemoteError

INTERRUPTED = 130
GAP = "  "
"""Between two columns of a table that is not on a terminal."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def group(help_: str, **settings: Any) -> typer.Typer:
    """A command line or a group of commands, plain on every terminal; ``settings`` are typer's."""
    plain: dict[str, Any] = {
        "no_args_is_help": True,
        "rich_markup_mode": None,
        "pretty_exceptions_enable": False,
        "add_completion": False,
    }
    return typer.Typer(help=help_, **(plain | settings))


def run(app: typer.Typer, prog: str, arguments: list[str] | None = None) -> int:
    """Run a command line; returns the exit code.

    0 is success, 2 bad input or usage, 130 interrupted, 1 anything else. What a user can fix is
    one line on stderr.
    """
    command = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name=prog, standalone_mode=False)
    except HeadwayError as error:
        return fail(str(error), _exit_code(error))
    except (KeyboardInterrupt, typer.Abort):
        return fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # `headway logs | head`
        sys.stderr.close()
        return 0
    except Exception as error:
        text = getattr(error, "format_message", None)  # usage errors of the parser inside typer
        if text is None or not hasattr(error, "exit_code"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(text(), err=True)
            return int(error.exit_code)
        where = getattr(getattr(error, "ctx", None), "command_path", prog)
        return fail(f"{text().rstrip('.')}; see `{where} --help`", int(error.exit_code))
    return result if isinstance(result, int) else 0


def fail(line: str, code: int) -> int:
    """Print the reason on stderr, in one line; returns ``code``."""
    typer.echo(f"error: {' '.join(line.split())}", err=True)
    return code


def _exit_code(error: HeadwayError) -> int:
    """A refusal by a daemon for bad input is bad input here too."""
    refused = isinstance(error, RemoteError) and error.remote_code in ("input", "config", "version")
    return 2 if refused else error.exit_code


# ---- results ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Table:
    """Rows of cells, None being "-"; a column of numbers only is aligned to the right."""

    rows: Sequence[Sequence[object]]
    header: Sequence[str] = ()

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold nothing but numbers."""
        cells = zip(*self.rows, strict=True)
        return [all(c is None or isinstance(c, int | float) for c in column) for column in cells]

    @property
    def text(self) -> list[list[str]]:
        """The cells as they are printed."""
        return [["-" if c is None else str(c) for c in row] for row in self.rows]

    def lines(self) -> list[str]:
        """Without a terminal: each column as wide as its longest cell, whatever that is."""
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
        typer.echo(to_json(data))
        return
    for line in lines:
        if isinstance(line, str):
            typer.echo(line)
        elif line.rows and sys.stdout.isatty():
            _draw(line)
        elif line.rows:
            typer.echo("\n".join(line.lines()))


def _draw(table: Table) -> None:
    """On a terminal: cells that are too long for it fold inside their column."""
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
