"""Small tables for notebooks. They carry no colours, so they follow the theme of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

LOOK = Path(__file__).with_name("look.js")
"""What all pages of the console draw with: elements, colours, numbers and times as text."""


def facts_html(title: str, facts: Iterable[tuple[str, str]]) -> str:
    """A title and one row per fact."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(key)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for key, value in facts
    )
    return f"<table><caption><b>{escape(title)}</b></caption>{rows}</table>"


def table_html(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a header; None is shown as "-"."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def note_html(note: str) -> str:
    """A paragraph below a table or a drawing; nothing for an empty one."""
    return f'<div style="max-width:60em;opacity:.8">{escape(note)}</div>' if note else ""


def _cell(value: object) -> str:
    return "-" if value is None else escape(str(value))
