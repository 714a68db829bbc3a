"""``headway sample``: a live run's ranks write one text, else this process writes from a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from headway.common.cli import AsJson
from headway.common.errors import InputError
from headway.common.output import emit
from headway.console.commands.models import model_folder
from headway.console.commands.options import RUNS, RunsDir, Step, complete_runs, find_run

KEYS = (
    "run, operation, sequence, applied, prompt, tokens, temperature, step, text, generation; "
    "without a live run: model, step, prompt, texts"
)
STORED = {"top_p": 1.0, "count": 1, "seed": 0, "dtype": "fp32", "step": None}
"""Options that a live run does not have, with their defaults."""


def sample_command(send: Callable[..., None]) -> Callable[..., None]:
    """The command; ``send(name, arguments, runs_dir, wait=, as_json=)`` asks the live run."""

    def sample(
        model: Annotated[
            str | None,
            typer.Argument(
                metavar="RUN",
                help="Name of a run, the newest by default; or a folder of `headway model import` "
                "or Hugging Face.",
                autocompletion=complete_runs,
            ),
        ] = None,
        prompt: Annotated[
            str, typer.Option(metavar="TEXT", help="The text to continue; none begins a new one.")
        ] = "",
        tokens: Annotated[int, typer.Option(metavar="N", help="How many tokens to write.")] = 64,
        temperature: Annotated[
            float,
            typer.Option(metavar="T", help="0 for the likeliest tokens; higher is more varied."),
        ] = 0.8,
        top_p: Annotated[
            float,
            typer.Option(
                metavar="P", help="Draw from the likeliest tokens that have this probability."
            ),
        ] = 1.0,
        count: Annotated[int, typer.Option(metavar="N", help="How many texts to write.")] = 1,
        seed: Annotated[int, typer.Option(metavar="N", help="Of the first text.")] = 0,
        step: Step = None,
        dtype: Annotated[
            str, typer.Option(metavar="TYPE", help="Type of the computation: bf16 or fp32.")
        ] = "fp32",
        wait: Annotated[
            bool,
            typer.Option("--wait/--no-wait", help="Wait for a live run's text (the default)."),
        ] = True,
        runs_dir: RunsDir = RUNS,
        as_json: AsJson = False,
    ) -> None:
        """Generate text from a prompt.

        A live run writes it between two steps, with temperature only. The newest checkpoint of an
        ended run, or a folder, is loaded by this process alone; --top-p, --count, --seed, --step
        and --dtype are for those.
        """
        asked = {"prompt": prompt, "tokens": tokens, "temperature": temperature}
        own = {"top_p": top_p, "count": count, "seed": seed, "dtype": dtype, "step": step}
        folder = find_run(None, runs_dir).path if model is None else model_folder(model, runs_dir)
        run = find_run(folder.name, runs_dir) if folder.parent == runs_dir.resolve() else None
        if run is not None and run.state == "live":
            _refuse_own(own, run.name)
            send(run.name, asked, runs_dir, wait=wait, as_json=as_json)
            return
        _write(folder, {**asked, **own}, as_json)

    return sample


def _refuse_own(options: dict[str, Any], run: str) -> None:
    for key, value in options.items():
        if value != STORED[key]:
            raise InputError(
                f"--{key.replace('_', '-')} {value} cannot be used with {run}, which is live",
                remedy="leave it out, or wait until the run has ended",
            )


def _write(folder: Path, options: dict[str, Any], as_json: bool) -> None:
    from headway.console.folder.samples import check_text
    from headway.console.machine.preflight import check_torch
    from headway.trainer.client import Request, write_texts

    check_torch()
    check_text(options["prompt"])
    done = write_texts(folder, Request(**options))
    lines = [f"{done.model}:" if done.step is None else f"{done.model}, step {done.step}:"]
    for text in done.texts:
        lines += (done.prompt + text).splitlines() or [""]
    emit(done, as_json, lines)
