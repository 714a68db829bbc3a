"""The buttons of the page: one line of ``BUTTONS`` each, the rest comes from ``steering``.

What a button sends, what it asks before, which fields are next to it and the lines to copy come
from its operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from typing import Any

from headway.common.errors import InputError
from headway.console.steering.methods import OPERATIONS
from headway.console.steering.operations import Operation, kind_of, parse, word_of

RANK = "rank"
"""The argument that takes the rank selected on the page."""


class Blank(str):
    """Stands for a value in a line to copy, in Python without quotes; the page fills it in."""

    __slots__ = ()

    def __new__(cls, name: str) -> Blank:
        """Make the blank of the argument ``name``."""
        return super().__new__(cls, f"%{name}%")

    def __repr__(self) -> str:
        """The blank itself, without quotes."""
        return str(self)


@dataclass(frozen=True)
class Button:
    """One operation with some of its arguments; the page asks for the others it cannot do without.

    Args:
        operation: a name of ``steering.OPERATIONS``.
        label: what is written on it; the operation's name by default.
        arguments: those that are fixed.
        fields: optional arguments that can be typed as well.
        on_rank: whether it acts on the selected rank.
        asks: a question of its own, where the operation has none.
        is_drill: whether it breaks something on purpose.
    """

    operation: str
    label: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    on_rank: bool = False
    asks: str = ""
    is_drill: bool = False

    @property
    def row(self) -> Operation:
        """Its operation."""
        return OPERATIONS[self.operation]

    @property
    def name(self) -> str:
        """Its label."""
        return self.label or self.operation

    @property
    def typed(self) -> list[Parameter]:
        """What is typed into fields next to it, in the order of the operation."""
        return [
            parameter
            for parameter in self.row.parameters
            if parameter.name not in self.arguments
            and (parameter.default is Parameter.empty or parameter.name in self.fields)
            and not (self.on_rank and parameter.name == RANK)
        ]

    def read(self, texts: Mapping[str, str], rank: int) -> dict[str, Any]:
        """The arguments from the texts of the fields and the selected rank.

        Raises:
            InputError: a text is not a value, or no rank is selected.
        """
        found = dict(self.arguments)
        if self.on_rank:
            if rank < 0:
                raise InputError("no rank is selected", remedy="select one first")
            found[RANK] = rank
        for parameter in self.typed:
            text = texts.get(parameter.name, "").strip()
            if text or parameter.default is Parameter.empty:
                found[parameter.name] = _value(parameter, text)
        return found

    def lines(self, run: Path, arguments: Mapping[str, Any]) -> dict[str, str]:
        """The shell command, which works in every folder, and the Python line for ``run``."""
        return {
            # named in full: the shell's folder need not be the kernel's
            "cli": self.row.cli_line(run, arguments, absolute=True),
            "python": self.row.python_line(arguments),
        }

    def described(self, run: Path) -> dict[str, Any]:
        """What the page needs to show it; ``%NAME%`` stands for what only the page knows."""
        blanks = {parameter.name: Blank(parameter.name) for parameter in self.typed}
        blanks |= {RANK: Blank(RANK)} if self.on_rank else {}
        given = {**self.arguments, **blanks}
        return {
            "name": self.name,
            "operation": self.operation,
            "hint": self.row.summary.rstrip("."),
            "question": self._question(run.name, given),
            "is_drill": self.is_drill,
            "on_rank": self.on_rank,
            "fields": [_described(parameter) for parameter in self.typed],
            **self.lines(run, given),
        }

    def _question(self, run: str, given: Mapping[str, Any]) -> str:
        if self.row.asks is None:
            return self.asks
        defaults = {p.name: p.default for p in self.row.parameters}
        return self.asks or self.row.asks({"run": run, **defaults, **given})


BUTTONS = (
    Button("pause"),
    Button("resume"),
    Button("checkpoint"),
    Button("stop", asks="stop the run?"),
    Button("set", "set lr"),
    Button("unset", "unset lr", {"name": "lr"}),
    Button("evaluate"),
    Button("sample", fields=("prompt",)),
    Button("extend"),
    Button("rollback", "roll back"),
    Button("fork"),
    Button("inject", "kill rank", {"fault": "kill"}, on_rank=True, is_drill=True),
    Button("inject", "stop rank", {"fault": "stop"}, on_rank=True, is_drill=True),
)
"""In the order of the page; drills are folded away."""


def button(name: str) -> Button:
    """The button of that name.

    Raises:
        InputError: there is none.
    """
    for found in BUTTONS:
        if found.name == name:
            return found
    raise InputError(
        f"unknown button {name!r}", remedy=f"use one of {', '.join(b.name for b in BUTTONS)}"
    )


def _described(parameter: Parameter) -> dict[str, Any]:
    word, kind = word_of(parameter), kind_of(parameter)
    return {
        "name": parameter.name,
        "label": word.help.rstrip("."),
        "example": "3e-4" if kind is float else parameter.name,
        "is_text": kind is str,
        "is_optional": parameter.default is not Parameter.empty,
    }


def _value(parameter: Parameter, text: str) -> Any:
    name = parameter.name
    if not text:
        what = word_of(parameter).help.rstrip(".")
        raise InputError(f"no value for {name}", remedy=f"type {what[0].lower()}{what[1:]}")
    return parse(parameter, text)
