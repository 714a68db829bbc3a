"""Commands that steer a living run: each is one message to its driver, carried out once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import AsJson
from headway.common.errors import InputError
from headway.common.output import emit
from headway.console.commands.options import (
    RUNS,
    AnyRun,
    NamedRun,
    RunsDir,
    check_rank,
    find_run,
)

Wait = Annotated[bool, typer.Option("--wait", help="Return when all ranks have applied it.")]

FAULT_HELP = (
    "kill, stop, freeze, debugger, slow_disk, full_disk, locked_journal, damaged_arena_header, "
    "flipped_snapshot_bit, spawn_failure, silent_node, returning_node or clock_step."
)
TARGET_HELP = (
    "A service instead: dataloader, ckpt_store, agent, zygote, executor, monitor, driver; "
    "or a whole `node`; or `run` for what all nodes share."
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for operation, help_ in (
        ("pause", "Hold all ranks at their next step."),
        ("resume", "Resume a paused run."),
        ("stop", "End the run at its next step, with a checkpoint."),
        ("checkpoint", "Make the state after the next step durable."),
    ):
        app.command(operation, help=help_)(_steer(operation))
    app.command("set")(set_)
    app.command("evict")(evict)
    app.command("inject")(inject)


def _steer(operation: str) -> Callable[..., None]:
    def command(
        run: AnyRun = None, wait: Wait = False, runs_dir: RunsDir = RUNS, as_json: AsJson = False
    ) -> None:
        _send(operation, run, runs_dir, wait, as_json)

    command.__name__ = operation
    return command


def _send(
    operation: str,
    run: str | None,
    runs_dir: Path,
    wait: bool,
    as_json: bool,
    name: str = "",
    value: float = 0.0,
) -> None:
    found = find_run(run, runs_dir)
    sequence = found.command(operation, name=name, value=value)
    if wait:
        found.wait_applied(sequence)
    done = {"run": found.name, "operation": operation, "sequence": sequence, "applied": wait}
    setting = f" {name}={value:g}" if name else ""
    emit(done, as_json, [f"{operation}{setting}: {'applied' if wait else 'sent'} to {found.name}"])


def set_(
    run: NamedRun,
    setting: Annotated[str, typer.Argument(help="lr=VALUE.")],
    wait: Wait = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Change a setting of a living run from the next step on."""
    key, _, text = setting.partition("=")
    try:
        value = float(text)
    except ValueError:
        raise InputError(
            f"expected KEY=VALUE, got {setting!r}",
            remedy="for example lr=3e-4",
        ) from None
    if key != "lr":
        raise InputError(f"cannot set {key!r}", remedy="only lr can be set while a run is live")
    if not 0 < value < float("inf"):
        raise InputError(f"cannot set lr to {text}", remedy="set lr to a number above 0")
    _send("set", run, runs_dir, wait, as_json, key, value)


def evict(
    run: NamedRun,
    node: Annotated[int, typer.Argument(help="Number of the node.")],
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Take a node out of the run for good; a spare takes over its ranks."""
    found = find_run(run, runs_dir)
    found.evict(node)
    emit(
        {"run": found.name, "operation": "evict", "node": node},
        as_json,
        [f"node {node} is out of {found.name}"],
    )


def inject(
    run: NamedRun,
    fault: Annotated[str, typer.Argument(help=FAULT_HELP)],
    rank: Annotated[int | None, typer.Option(help="The worker of this rank.")] = None,
    service: Annotated[
        str | None,
        typer.Option("--service", "--target", help=TARGET_HELP),
    ] = None,
    node: Annotated[
        int | None, typer.Option(help="The node of that service; else the driver's.")
    ] = None,
    duration_s: Annotated[
        float, typer.Option("--for", help="Seconds that a fault lasts; 0: its default.", min=0)
    ] = 0.0,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Break something on purpose, to see the run recover."""
    if (rank is None) == (service is None):
        raise InputError("nothing to break" if rank is None else "two things to break",
                         remedy="give --rank R, or --service NAME with --node N")  # fmt: skip
    found = find_run(run, runs_dir)
    if rank is not None:
        check_rank(found, rank)
        found.inject(fault, rank=rank, duration_s=duration_s)
        what = f"the worker of rank {rank}"
    else:
        home = -1 if node is None else node
        found.inject(fault, target=service or "", node=home, duration_s=duration_s)
        what = f"{service} of " + ("the driver's node" if node is None else f"node {node}")
    done = {
        "run": found.name,
        "operation": "inject",
        "fault": fault,
        "rank": rank,
        "service": service,
        "node": node,
        "duration_s": duration_s,
    }
    emit(done, as_json, [f"{fault} sent to {what} of {found.name}"])
