"""How help looks: one line per command, by purpose, with examples and the keys of ``--json``."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer
from headway.common.cli import group
from typer.core import TyperCommand, TyperGroup

START, LOOK, STEER = "Start a run", "Look at runs", "Steer a run"
MACHINES, SERVICES = "Machines", "Services"
WIDTH = 10
"""Of the column of names, the same below every heading."""
HEADINGS = (START, LOOK, STEER, MACHINES, SERVICES, "Commands")
"""Headings of ``headway --help``, in their order."""


def add(
    app: typer.Typer,
    function: Callable[..., None],
    *,
    name: str = "",
    heading: str = "Commands",
    examples: Sequence[str] = (),
    json: str = "",
) -> None:
    """Add a command whose help is the docstring of ``function``.

    Args:
        app: the group.
        function: the command; the first sentence of its docstring is its line in the list.
        name: on the command line; the function's name by default.
        heading: where the list shows it.
        examples: command lines.
        json: what ``--json`` prints, as ``one object: key, key``.
    """
    text = (function.__doc__ or "").strip()
    app.command(
        name or function.__name__,
        cls=Page,
        help=text,
        epilog=epilog(examples, json),
        rich_help_panel=heading,
    )(function)


def add_group(app: typer.Typer, name: str, help_: str, heading: str) -> typer.Typer:
    """Add a group of commands, to be filled by ``add``."""
    made = group(help_, name=name, cls=PageGroup)
    app.add_typer(made, rich_help_panel=heading)
    return made


def one_line(text: str) -> str:
    """The first sentence, as a list of commands shows it."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".")


def epilog(examples: Sequence[str], json: str = "") -> str:
    """What follows the options in a help page."""
    blocks = [["Examples:", *(f"  {line}" for line in examples)]] if examples else []
    if json:
        blocks.append(
            ["JSON:", *textwrap.wrap(json, 76, initial_indent="  ", subsequent_indent="    ")]
        )
    return "\n\n".join("\n".join(block) for block in blocks)


class Page(TyperCommand):
    """A command whose help shows words as they are typed, without types in brackets."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """``[OPTIONS] [RUN] NODE``."""
        words = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *(_usage(word) for word in words)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options."""
        write_parameters(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples, never wrapped: they are for copying."""
        del ctx
        write_epilog(self, formatter)


class PageGroup(TyperGroup):
    """A group whose commands are listed by heading."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Commands first: options of a group are few and seldom needed."""
        self.format_commands(ctx, formatter)
        write_parameters(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One line per command."""
        described = {name: self.described(ctx, name) for name in self.list_commands(ctx)}
        write_commands(described, formatter)

    def described(self, ctx: Any, name: str) -> tuple[str, str]:
        """Heading and line of a command."""
        return described(self.get_command(ctx, name))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples, never wrapped."""
        del ctx
        write_epilog(self, formatter)


def described(command: Any) -> tuple[str, str]:
    """Heading and line of a command in a list."""
    return command.rich_help_panel or "Commands", one_line(command.help or "")


def write_commands(commands: Mapping[str, tuple[str, str]], formatter: Any) -> None:
    """A list of commands: name -> heading and line."""
    by_heading: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
    for name, (heading, line) in commands.items():
        by_heading[heading].append((name.ljust(WIDTH), line))
    for heading, rows in by_heading.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


def write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """The sections Arguments and Options."""
    words: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            words += _words(parameter)
        else:
            options.append((_names(parameter, ctx), parameter.help or ""))
    for heading, rows in (("Arguments", words), ("Options", options)):
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


def write_epilog(command: Any, formatter: Any) -> None:
    """The examples as they are."""
    if command.epilog:
        formatter.write(f"\n{command.epilog}\n")


def _usage(word: Any) -> str:
    name = str(word.metavar or word.name.upper())
    return name if word.required or " " in name else f"[{name}]"


def _words(word: Any) -> list[tuple[str, str]]:
    """``RUN<tab>help`` per line where one parameter takes several words, else its own help."""
    help_ = word.help or ""
    if "\t" not in help_:
        return [(str(word.metavar or word.name.upper()), help_)]
    rows = [line.partition("\t") for line in help_.splitlines()]
    return [(name, text) for name, _, text in rows]


def _names(option: Any, ctx: Any) -> str:
    short_first = sorted(option.opts, key=lambda name: name.startswith("--"))
    names = ", ".join((*short_first, *option.secondary_opts))
    if option.is_flag or option.count:
        return names
    kind = option.metavar or option.display_type(ctx).strip("<>").removesuffix(" range").upper()
    return f"{names} {kind}"
