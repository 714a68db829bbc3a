"""The ``headway`` command: its own commands, and those that installed services bring along.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once. A service's commands are
found by the entry-point group ``headway.commands`` and imported only when used.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import typer
from headway.common.cli import group, run
from headway.console.commands import inspecting, launching, machines, steering, watching
from headway.console.commands.options import RUNS
from typer.core import TyperGroup

GROUP = "headway.commands"


class LazyGroup(TyperGroup):
    """A group that knows the services' command groups by name and imports one only to run it."""

    _is_listing = False

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list in the help, which asks each command for one line; no service is imported for that."""
        self._is_listing = True
        try:
            super().format_commands(ctx, formatter)
        finally:
            self._is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Own commands in their order, then the services'."""
        return [*super().list_commands(ctx), *sorted(_services())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """An own command, or a service's group."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        point = _services().get(cmd_name)
        if point is None:
            return None
        if self._is_listing:
            return _placeholder(cmd_name, point.value)
        command: Any = typer.main.get_command(point.load())
        command.name = cmd_name
        if cmd_name == "ckpt":
            for verb in command.commands.values():
                _accept_run_names(verb)
        return command


def _accept_run_names(verb: Any) -> None:
    """Let ``path``, the argument of the ``ckpt`` verbs, be the name of a run in ``runs``; a path that exists wins."""
    for parameter in verb.params:
        if parameter.name == "path":
            parameter.callback = lambda _context, _parameter, value: _run_folder(value)


def _run_folder(value: Any) -> Any:
    folder = RUNS / str(value)
    return folder if not Path(value).exists() and (folder / "run.json").exists() else value


@functools.cache
def _services() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def _placeholder(name: str, value: str) -> Any:
    module = value.partition(":")[0].rpartition(".")[0]
    stand_in = group("", name=name)

    @stand_in.command(name=name, help=f"Commands of {module}.")
    def nothing() -> None: ...

    command = typer.main.get_command(stand_in)
    command.name = name
    return command


app = group(
    "Train large language models: launch, watch and steer runs that recover by themselves.",
    name="headway",
    cls=LazyGroup,
    add_completion=True,
)
for module in (launching, watching, steering, inspecting, machines):
    module.register(app)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code, see ``common.cli.run``."""
    return run(app, "headway", arguments)
