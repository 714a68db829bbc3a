"""Text that others wrote cannot steer a terminal."""

from __future__ import annotations

import pytest
from headway.common.output import Table, emit
from headway.common.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext ä 模", "plain\ttext ä 模"),
        ("\x1b[2J\x07\x00", "\\x1b[2J\\x07\\x00"),
        ("a\rb\nc\x7f\x9b31m", "a\\x0db\\x0ac\\x7f\\x9b31m"),
        ("\u202egpj.exe\u2066\u2028\u200f", "\\u202egpj.exe\\u2066\\u2028\\u200f"),
        ("half \ud83d of a pair", "half \\ud83d of a pair"),
    ],
)
def test_what_steers_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    shown.encode()


def test_lines_and_tables_are_printed_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    emit(None, False, ["waits for \x1b[31mrank 1\nand rank 2", Table([("a\x1b]0;t\x07",)])])
    assert capsys.readouterr().out == ("waits for \\x1b[31mrank 1\nand rank 2\na\\x1b]0;t\\x07\n")
