"""What commands print: JSON that every reader accepts, and tables that hold whatever is in them."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from headway.common.output import Table, emit, mebibytes, to_json

LONG = "a-run-with-a-name-that-is-longer-than-any-column-was-ever-made-for"
TABLE = Table([(LONG, "live", 3), ("[bold]b", None, 1200)], ("run", "state", "step"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_json_is_valid_whatever_the_figures_are() -> None:
    class Inner(msgspec.Struct, tag="x/1"):
        rate: float

    @dataclass
    class Outer:
        loss: float
        path: Path
        inner: tuple[Inner, ...]

    outer = Outer(float("nan"), Path("/x"), (Inner(float("inf")), Inner(0.5)))
    text = to_json({"rows": [outer], "by_rank": {0: float("-inf"), 1: True}, "none": None})
    assert "\n" not in text
    row = {"loss": None, "path": "/x", "inner": [{"rate": None}, {"rate": 0.5}]}
    assert json.loads(text) == {"rows": [row], "by_rank": {"0": None, "1": True}, "none": None}
    with pytest.raises(TypeError, match="object has no JSON form"):
        to_json(object())


def test_without_a_terminal_a_table_is_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    emit({}, False, ["two runs", TABLE, Table([])])
    title, header, *rows = capsys.readouterr().out.splitlines()
    assert title == "two runs"
    assert header == f"{'run':<{len(LONG)}}  state  step"
    assert rows == [f"{LONG}  live      3", f"{'[bold]b':<{len(LONG)}}  -      1200"]


@pytest.mark.parametrize("columns", [40, 200])
def test_on_a_terminal_no_row_is_wider_than_it(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    emit({}, False, [TABLE])
    text = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= columns
    assert "[bold]b" in text, "cells are text, not markup"
    ends = {
        line.rindex(step) + len(step) for line in lines for step in (" 3", "1200") if step in line
    }
    assert len(ends) == 1, "numbers are aligned"
    folded = "".join(line.split(" ")[0] for line in lines[1:])
    assert folded.startswith(LONG), "a long cell folds, nothing of it is lost"


def test_sizes_are_told_in_mebibytes() -> None:
    assert (mebibytes(3 << 20), mebibytes(None)) == ("3.0 MiB", "-")
