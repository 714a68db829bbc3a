"""How help looks, the same for every command: one line each in a list, then a page with examples.

``{command}`` in an example is the command as it was called: a service's commands are reached by
``headway`` and by ``python -m``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

WIDTH = 10
"""Width of the column of names, the same below every heading."""
DAEMONS = "Daemons, which `headway run` starts"
"""Heading of commands that nobody types in an ordinary run."""
KINDS = {"INT": "N", "INTEGER": "N", "STR": "TEXT", "LIST[STR]": "TEXT", "PATH": "FILE"}
"""How a value is called that an option gives no name of its own."""
Function = TypeVar("Function", bound=Callable[..., None])


def page(
    app: typer.Typer,
    name: str = "",
    *,
    heading: str = "Commands",
    examples: Sequence[str] = (),
    json: str = "",
) -> Callable[[Function], Function]:
    """Add a command whose help is the docstring of the decorated function.

    Args:
        app: the group.
        name: on the command line; the function's name by default.
        heading: where the list shows it.
        examples: command lines.
        json: what ``--json`` prints, as ``one object: key, key``.
    """

    def added(function: Function) -> Function:
        app.command(
            name or function.__name__,
            cls=Page,
            help=(function.__doc__ or "").strip(),
            epilog=epilog(examples, json),
            rich_help_panel=heading,
        )(function)
        return function

    return added


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
        """``[OPTIONS] --needed N [RUN] NODE``."""
        known = self.get_params(ctx)
        words = [p for p in known if p.param_type_name == "argument"]
        needed = [p for p in known if p.param_type_name == "option" and p.required]
        return ["[OPTIONS]", *(_names(p, ctx) for p in needed), *(_usage(p) for p in words)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options."""
        write_parameters(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples, never wrapped: they are for copying."""
        write_epilog(self, ctx, formatter)


class PageGroup(TyperGroup):
    """A group whose commands are listed by heading."""

    headings: Sequence[str] = ()
    """Those to be listed first, in their order."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Commands first: options of a group are few and seldom needed."""
        self.format_commands(ctx, formatter)
        write_parameters(self, ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One line per command."""
        described = {name: self.described(ctx, name) for name in self.list_commands(ctx)}
        write_commands(described, formatter, self.headings)

    def described(self, ctx: Any, name: str) -> tuple[str, str]:
        """Heading and line of a command."""
        return described(self.get_command(ctx, name))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples, never wrapped."""
        write_epilog(self, ctx, formatter)


def described(command: Any) -> tuple[str, str]:
    """Heading and line of a command in a list."""
    return command.rich_help_panel or "Commands", one_line(command.help or "")


def write_commands(
    commands: Mapping[str, tuple[str, str]], formatter: Any, headings: Sequence[str] = ()
) -> None:
    """A list of commands: name -> heading and line."""
    known = {heading for heading, _ in commands.values()}
    by_heading: dict[str, list[tuple[str, str]]] = {
        heading: [] for heading in headings if heading in known
    }
    for name, (heading, line) in commands.items():
        by_heading.setdefault(heading, []).append((name.ljust(WIDTH), line))
    for heading, rows in by_heading.items():
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


def write_epilog(command: Any, ctx: Any, formatter: Any) -> None:
    """The examples as they are."""
    if command.epilog:
        formatter.write(f"\n{command.epilog.replace('{command}', ctx.command_path)}\n")


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
    kind = option.make_metavar(ctx).strip("<>").removesuffix(" range").upper()
    return f"{names} {option.metavar or KINDS.get(kind, kind)}"
