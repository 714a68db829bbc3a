"""Commands that steer a living run: each is one message to its driver, carried out once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from headway.common.cli import AsJson
from headway.common.errors import InputError
from headway.common.output import emit
from headway.console.commands.options import (
    RUNS,
    AnyRun,
    NamedRun,
    RunsDir,
    Yes,
    check_rank,
    confirm,
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
        ("checkpoint", "Make the state after the next step durable."),
    ):
        app.command(operation, help=help_)(_steer(operation))
    app.command("stop")(stop)
    app.command("set")(set_)
    app.command("unset")(unset)
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
    **setting: Any,
) -> None:
    found = find_run(run, runs_dir)
    sequence = found.command(operation, **setting)
    if wait:
        found.wait_applied(sequence)
    done = {"run": found.name, "operation": operation, "sequence": sequence, "applied": wait}
    what = operation
    if "name" in setting:
        value = f"={setting['value']:g}" if "value" in setting else ""
        what += f" {setting['name']}{value}"
    emit(done, as_json, [f"{what}: {'applied' if wait else 'sent'} to {found.name}"])


def set_(
    run: NamedRun,
    setting: Annotated[list[str], typer.Argument(metavar="lr=VALUE", help="Or: lr VALUE.")],
    force: Annotated[
        bool, typer.Option("--force", help="Take a value far above the configured one.")
    ] = False,
    wait: Wait = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Change a setting of a live run from the next step on; undo with `headway unset`."""
    from headway.trainer.config import check_setting

    given = "=".join(setting)
    key, _, text = given.partition("=")
    try:
        value = float(text)
    except ValueError:
        raise InputError(
            f"expected KEY=VALUE, got {given!r}",
            remedy="for example lr=3e-4",
        ) from None
    check_setting(key, value, find_run(run, runs_dir).config, force=force)
    _send("set", run, runs_dir, wait, as_json, name=key, value=value, force=force)


def unset(
    run: NamedRun,
    name: Annotated[str, typer.Argument(metavar="lr", help="The setting: lr.")],
    wait: Wait = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Take a `headway set` back: from the next step on the schedule decides again."""
    from headway.trainer.config import check_name

    check_name(name)
    _send("unset", run, runs_dir, wait, as_json, name=name)


def stop(
    run: AnyRun = None,
    limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds without progress after which its processes are ended by force; "
            "else recovery.stop_timeout_s.",
            min=0,
        ),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="End its processes at once, without a checkpoint.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return only when the run has ended.")
    ] = True,
    yes: Yes = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """End the run at its next step, with a checkpoint, and wait until it has ended.

    A run that cannot stop is ended by force; its checkpoints stay. Exit code 0: it stopped by
    itself, or by --now. 3: it was ended by force. 1: a process could not be ended.
    """
    from headway.console.ending import end

    found = find_run(run, runs_dir)
    confirm(f"stop run {found.name}?", yes)
    if not wait and not now:
        _send("stop", found.name, runs_dir, False, as_json)
        return
    ending = end(found, limit_s=limit, now=now, tell=lambda line: typer.echo(line, err=as_json))
    emit(ending, as_json, [ending.line()])
    raise typer.Exit(ending.exit_code(now=now))


def evict(
    run: NamedRun,
    node: Annotated[int, typer.Argument(help="Number of the node.")],
    yes: Yes = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Take a node out of the run for good; a spare takes over its ranks."""
    found = find_run(run, runs_dir)
    confirm(f"take node {node} out of run {found.name} for good?", yes)
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
    yes: Yes = False,
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
        what = f"the worker of rank {rank}"
    else:
        what = f"{service} of " + ("the driver's node" if node is None else f"node {node}")
    confirm(f"inject {fault} into {what} of run {found.name}?", yes)
    if rank is not None:
        found.inject(fault, rank=rank, duration_s=duration_s)
    else:
        home = -1 if node is None else node
        found.inject(fault, target=service or "", node=home, duration_s=duration_s)
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
