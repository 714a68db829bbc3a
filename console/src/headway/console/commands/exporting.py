"""``headway export``: metrics of a run for TensorBoard and Weights & Biases."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson
from headway.common.help_pages import page
from headway.common.output import counted, emit
from headway.console.commands.options import RUNS, AnyRun, RunsDir, find_run
from headway.console.commands.pages import LOOK
from headway.console.commands.pods import with_records

if TYPE_CHECKING:
    from headway.console.sinks.export import Exported

SINKS = ("tensorboard", "wandb")
"""For the completion; ``headway.trainer.config.SINKS`` without its import."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    page(
        app,
        heading=LOOK,
        examples=(
            "headway export tiny --to tensorboard",
            "headway export tiny --to wandb --out exports/tiny --follow",
        ),
        json="one object: run, sink, out, steps, evaluations, recoveries, last_step; with "
        "--follow one object per line, whenever something was written",
    )(export)


def export(
    run: AnyRun = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="SINK",
            help="tensorboard or wandb (offline).",
            autocompletion=lambda: list(SINKS),
        ),
    ] = "tensorboard",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Folder to write to; sinks/SINK in the run's by default."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Stay, and export until the run is over.")
    ] = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Export the curves of a run to TensorBoard or W&B.

    A second export into the same folder continues where the first one ended: every step is there
    once. The x axis counts completed steps.
    """
    from headway.common.log import setup
    from headway.console.machine.preflight import check_sinks
    from headway.console.sinks.export import exporting
    from headway.console.sinks.exporter import follow as stay
    from headway.trainer.config import check_sink

    check_sink(to)
    check_sinks([to])
    found = with_records(find_run(run, runs_dir))
    with exporting(found, to, out) as exported:
        if not follow:
            _print(exported.update(), as_json)
            return
        setup("export")
        stay(
            found,
            exported,
            is_ended=lambda: False,
            wait=time.sleep,
            report=lambda done: _print(done, as_json),
        )


def _print(done: Exported, as_json: bool) -> None:
    view = {
        "tensorboard": f"tensorboard --logdir {done.out}",
        "wandb": f"wandb sync {done.out}/wandb/offline-run-*",
    }
    line = (
        f"{done.run}: exported {counted(done.steps, 'step')}, "
        f"{counted(done.evaluations, 'validation loss', 'validation losses')} and "
        f"{counted(done.recoveries, 'recovery', 'recoveries')} to {done.out}; "
        f"see them with `{view[done.sink]}`"
    )
    emit(done, as_json, [line])
