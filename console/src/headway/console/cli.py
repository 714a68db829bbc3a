"""The ``headway`` command: its own commands, and those that installed services bring along.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once. A service's commands are
found by the entry-point group ``headway.commands`` and imported only when used.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import typer
from headway.common.errors import HeadwayError, RemoteError
from headway.console.commands import inspecting, launching, machines, steering, watching
from typer.core import TyperGroup

GROUP = "headway.commands"
INTERRUPTED = 130


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
        command = typer.main.get_command(point.load())
        command.name = cmd_name
        return command


@functools.cache
def _services() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def _placeholder(name: str, value: str) -> Any:
    module = value.partition(":")[0].rpartition(".")[0]
    stand_in = typer.Typer(name=name, rich_markup_mode=None, add_completion=False)

    @stand_in.command(name=name, help=f"Commands of {module}.")
    def nothing() -> None: ...

    command = typer.main.get_command(stand_in)
    command.name = name
    return command


app = typer.Typer(
    name="headway",
    cls=LazyGroup,
    help="Train large language models that keep training: launch, steer, watch and mend runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
)
for module in (launching, watching, steering, inspecting, machines):
    module.register(app)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0 is well; 2 bad input or usage; 130 interrupted; 1 anything else. An error is one line on stderr.
    """
    command = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name="headway", standalone_mode=False)
    except HeadwayError as error:
        return _fail(str(error), _exit_code(error))
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)
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
        return _fail(f"{text().rstrip('.')}; see `headway --help`", int(error.exit_code))
    return result if isinstance(result, int) else 0


def _exit_code(error: HeadwayError) -> int:
    """A refusal by the driver for bad input is bad input here too."""
    refused = isinstance(error, RemoteError) and error.remote_code in ("input", "config", "version")
    return 2 if refused else error.exit_code


def _fail(line: str, code: int) -> int:
    typer.echo(f"error: {' '.join(line.split())}", err=True)
    return code
