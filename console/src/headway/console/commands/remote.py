"""``headway gateway`` and ``headway attach``: a console on a machine that does not see the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import AsJson
from headway.common.errors import InputError
from headway.common.help_pages import page
from headway.common.output import emit
from headway.console.commands.options import RUNS, RunsDir
from headway.console.commands.pages import LOOK, MACHINES


def register(app: typer.Typer) -> None:
    """Add the commands."""
    page(
        app,
        heading=LOOK,
        examples=("headway attach gateway.key", "headway attach gateway.key tiny"),
        json="list: name, state, path",
    )(attach)
    page(
        app,
        heading=MACHINES,
        examples=("headway gateway --listen tcp://10.0.0.5:7070 --key-file gateway.key",),
    )(gateway)


def gateway(
    listen: Annotated[
        str,
        typer.Option(
            metavar="tcp://ADDRESS:PORT", help="Where to listen: an address of this machine."
        ),
    ],
    key_file: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Key file, created at the first start; copy it to the other machine.",
        ),
    ],
    runs_dir: RunsDir = RUNS,
) -> None:
    """Let other machines watch and steer the runs of this one.

    Runs in the foreground until Ctrl-C. Anyone who has FILE can watch and steer the runs. The
    gateway's own key is in FILE.server. Both files are reused at the next start.
    """
    from headway.common.log import setup
    from headway.common.wire.keys import KeyPair
    from headway.console.gateway.access import Access
    from headway.console.gateway.server import Gateway

    if not runs_dir.is_dir():
        raise InputError(f"{runs_dir} does not exist", remedy="give --runs-dir")
    own = key_file.with_name(f"{key_file.name}.server")
    keys = KeyPair.load(own) if own.exists() else KeyPair.generate()
    known = Access.load(key_file).keys if key_file.exists() else KeyPair.generate()
    setup("gateway")
    served = Gateway(listen, runs_dir.resolve(), keys, known.public)
    if not own.exists():  # only now, since an address that is not free must leave no file
        keys.save(own)
    Access.new(served.endpoint, keys.public, known).save(key_file)
    typer.echo(f"the gateway listens on {served.endpoint}")
    typer.echo(f"copy {key_file} to the other machine; there: headway attach {key_file.name}")
    raise typer.Exit(served.run())


def attach(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The key file of a gateway.")],
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Name of the run; all by default.")
    ] = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Attach runs of another machine, through its gateway.

    Each run gets a folder here. Afterwards status, watch, logs, trace, stop and the steering
    commands work as on the run's own machine.
    """
    from headway.console.gateway.access import Access
    from headway.console.gateway.remote_run import attach as attach_runs

    access = Access.load(file)
    found = attach_runs(access, runs_dir, run)
    rows = [{"name": one.name, "state": one.state, "path": str(one.path)} for one in found]
    lines = [f"{one.name} is {one.state}; see {one.hint('status')}" for one in found]
    emit(rows, as_json, lines or [f"there are no runs at the gateway {access.address}"])
