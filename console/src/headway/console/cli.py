"""The ``headway`` command: its own commands, and those that installed services bring along.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once. A service's
commands are found by the entry-point group ``headway.commands`` and imported only when used.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from headway.common.cli import fail, group, run
from headway.common.errors import InputError
from headway.common.help_pages import PageGroup, epilog
from headway.console.commands import (
    ablating,
    clusters,
    configuration,
    diagnosing,
    exporting,
    inspecting,
    launching,
    models,
    nodes,
    remote,
    steering,
    watching,
)
from headway.console.commands.options import GATEWAY, RUNS, run_names
from headway.console.commands.pages import HEADINGS, LOOK, SERVICES, STEER

GROUP = "headway.commands"
SERVICE_HELP = {
    "ckpt": "List, verify and clear up checkpoints",
    "data": "Prepare and inspect training data",
    "health": "Check this machine's health",
}
"""Lines of the services' groups in the list, which is printed without importing them."""
EXAMPLES = (
    "headway run examples/tiny.toml        # train; Ctrl-C stops with a checkpoint",
    "headway watch                         # in a second shell: progress and events",
    "headway inject kill --rank 2          # break it, and watch it recover",
    "headway set lr=3e-4                   # steer it",
    "headway runs                          # every run, and how to resume it",
)


class LazyGroup(PageGroup):
    """Knows the services' command groups by name and imports one only to run it."""

    headings = HEADINGS

    def list_commands(self, ctx: Any) -> list[str]:
        """Own commands in their order, then the services'."""
        return [*super().list_commands(ctx), *sorted(_services())]

    def described(self, ctx: Any, name: str) -> tuple[str, str]:
        """Heading and line of a command; a service is not imported for that."""
        if name in _services():
            return SERVICES, SERVICE_HELP.get(name, f"Commands of {_services()[name].module}")
        return super().described(ctx, name)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """An own command, or a service's group."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        point = _services().get(cmd_name)
        if point is None:
            return None
        command: Any = typer.main.get_command(point.load())
        command.name = cmd_name
        if cmd_name == "ckpt":
            for verb in command.commands.values():
                _accept_run_names(verb)
        return command


def _accept_run_names(verb: Any) -> None:
    """Let ``path`` of the ``ckpt`` verbs be the name of a run in ``runs``; a path that exists wins.

    Left out, it is the working folder if that holds checkpoints, else the newest run.
    """
    for parameter in verb.params:
        if parameter.name == "path":
            parameter.callback = lambda _context, _parameter, value: _run_folder(value)


def _run_folder(value: Any) -> Any:
    path = Path(value)
    if path == Path() and not (path / "run.json").exists() and not list(path.glob("step-*")):
        newest = run_names(RUNS)
        return RUNS / newest[0] if newest else value
    folder = RUNS / path
    return folder if not path.exists() and (folder / "run.json").exists() else value


@functools.cache
def _services() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headway {version('headway-console')}")
        raise typer.Exit


def _root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Look at or steer the runs of another machine, by its gateway's key file.",
        ),
    ] = None,
) -> None:
    del version
    GATEWAY.set(cluster)
    if cluster is not None:
        _refuse_local(ctx)


def _refuse_local(ctx: typer.Context) -> None:
    """Only commands about an existing run take another machine's."""
    name = str(ctx.invoked_subcommand)
    root: Any = ctx.command
    if root.described(ctx, name)[0] not in (LOOK, STEER) or name == "attach":
        raise InputError(
            f"headway {name} does not use a gateway", remedy="leave `--cluster FILE` out before it"
        )


app = group(
    "Train language models in runs that recover from faults by themselves.\n\n"
    "A command that takes RUN means the newest run in ./runs when it is left out.",
    name="headway",
    cls=LazyGroup,
    add_completion=True,
    epilog=epilog(EXAMPLES),
)
app.callback()(_root)
MODULES = (
    launching,
    models,
    watching,
    diagnosing,
    inspecting,
    exporting,
    configuration,
    steering,
    ablating,
    clusters,
    nodes,
    remote,
)
for module in MODULES:
    module.register(app)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code, see ``common.cli.run``."""
    if not sys.platform.startswith("linux"):
        return fail(f"Headway needs Linux, this is {sys.platform}; use a Linux machine or VM", 2)
    return run(app, "headway", arguments)
