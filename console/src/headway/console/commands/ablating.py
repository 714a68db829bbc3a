"""``headway ablate``: what each technique is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import AsJson
from headway.common.help_pages import page
from headway.common.output import emit
from headway.console.commands.options import Settings, reporter
from headway.console.commands.pages import MACHINES


def register(app: typer.Typer) -> None:
    """Add the command."""
    page(
        app,
        heading=MACHINES,
        examples=(
            "headway ablate examples/ablate.toml --stand-in",
            "headway ablate my.toml --rungs tp,pp,dp --rounds 9",
            "headway ablate my.toml --set train.micro_batch_size=2 --out results",
        ),
        json="one object: path, table, ranking, record (as ablate.json)",
    )(ablate)


def ablate(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file of a run.")],
    rungs: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Techniques in their order, such as tp,pp,dp; all that apply by default.",
        ),
    ] = "",
    rounds: Annotated[
        int, typer.Option(metavar="N", help="Turns of each variant; 5 by default.")
    ] = 5,
    steps: Annotated[
        int, typer.Option(metavar="N", help="Steps of a turn that count; 12 by default.")
    ] = 12,
    stand_in: Annotated[
        bool,
        typer.Option(
            "--stand-in", help="Sleep instead of computing, for as long; messages are real."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New folder for the results; ablations/NAME by default."),
    ] = None,
    overrides: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Measure what each technique is worth, one by one and together.

    The baseline has all of them off. Each rung of the ladder runs alone and on top of those before
    it, in turns on this machine, as MegaScale's table 3 does. Ctrl-C keeps what was measured.
    """
    from headway.common.cli import INTERRUPTED
    from headway.common.errors import InputError
    from headway.console.ablation.measure import ablate as measure

    names = [name.strip() for name in rungs.split(",") if name.strip()]
    if rungs and not names:
        raise InputError(f"--rungs {rungs!r} names no rung", remedy="leave it out for all")
    found = measure(
        config,
        overrides or (),
        rungs=names,
        rounds=rounds,
        steps=steps,
        stand_in=stand_in,
        out=out,
        report=reporter(as_json),
    )
    picture = found.write_picture()
    data = {
        "path": found.folder,
        "table": found.table().frame.to_dicts(),
        "ranking": found.ranking(),
        "record": found.record,
    }
    emit(data, as_json, [repr(found), f"a page with the picture is {picture}"])
    if found.record.interrupted:
        typer.echo("interrupted: none of its processes is running", err=True)
        raise typer.Exit(INTERRUPTED)
