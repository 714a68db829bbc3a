"""``headway run``: start or resume a run and stay with it to its end."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from headway.common.cli import AsJson
from headway.common.errors import InputError
from headway.common.help_pages import page
from headway.common.output import emit, to_json
from headway.console.commands.options import RUNS, ClusterDir, NewName, RunsDir, Settings, reporter
from headway.console.commands.pages import START
from headway.console.commands.pods import on_pods

if TYPE_CHECKING:
    from headway.console.cluster import Cluster
    from headway.console.run import Run
    from headway.trainer.config import RunConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    page(
        app,
        heading=START,
        examples=(
            "headway run examples/tiny.toml",
            "headway run examples/tiny.toml --set train.steps=50 --set optim.lr=1e-3",
            "headway run my.toml --set data.source=./texts --name novels",
            "headway run my.toml --cluster clusters/gpus --set launch.interface=10.0.0.0/16",
            "headway run my.toml --engine kubernetes --set train.device=gpu",
        ),
        json="one object per line, as `watch`; the last one is the summary",
    )(run)


def run(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="TOML file, or a run to resume."),
    ],
    overrides: Settings = None,
    name: NewName = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="The same as --set launch.nodes=N.")
    ] = None,
    ranks_per_node: Annotated[
        int | None, typer.Option(metavar="N", help="The same as --set launch.ranks_per_node=N.")
    ] = None,
    spares: Annotated[
        int | None, typer.Option(metavar="N", help="The same as --set launch.spares=N.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the resolved configuration, memory and traffic, then stop."
        ),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return as soon as the run is up.")
    ] = False,
    runs_dir: RunsDir = RUNS,
    cluster: ClusterDir = None,
    engine: Annotated[
        Literal["local", "slurm", "kubernetes"],
        typer.Option(
            metavar="local|slurm|kubernetes", help="Where nodes come from; local by default."
        ),
    ] = "local",
    as_json: AsJson = False,
) -> None:
    """Start a run, or resume the unfinished one of that name.

    Ctrl-C or SIGTERM stops the run with a checkpoint (exit code 0). A second one returns at once
    while the run keeps stopping: `headway watch` and `headway status` show it. During start-up
    either one cancels the launch and cleans up.
    """
    from headway.common.config import load
    from headway.trainer.config import RunConfig

    config, name, given = _of_run(config, name, runs_dir)
    shortcuts = {"nodes": nodes, "ranks_per_node": ranks_per_node, "spares": spares}
    given += [f"launch.{key}={value}" for key, value in shortcuts.items() if value is not None]
    settings = [*given, *(overrides or [])]
    resolved = load(RunConfig, [config], settings)
    if dry_run:
        _show(resolved, as_json)
        return
    if engine != "local" and cluster is not None:
        raise InputError(
            "--engine and --cluster cannot be used together",
            remedy=f"`headway cluster create DIR --{engine} FILE` makes a cluster of it",
        )
    from headway.console.cluster import Cluster

    with _terminated_as_interrupted():
        place = Cluster(runs_dir, folder=cluster, engine=engine)
        started = _launch(config, settings, name, place, as_json, is_followed=not detach)
    if detach:
        done = {"name": started.name, "path": started.path, "run_id": started.folder.run_id}
        emit(done, as_json, [f"run {started.name} is up; watch it with {started.hint('watch')}"])
        return
    raise typer.Exit(_stay(started, as_json))


def _of_run(config: Path, name: str | None, runs_dir: Path) -> tuple[Path, str | None, list[str]]:
    """The file and name of a run, if ``config`` is its name, and what its file leaves unsaid."""
    own = runs_dir / config / "config.toml"
    if config.is_file() or not own.exists():
        return config, name, []
    from headway.console.folder.older_version import implied

    return own, name or config.name, implied(own)


def _show(config: RunConfig, as_json: bool) -> None:
    """Print what a run would have; text can be used as a configuration."""
    from headway.common.config import to_dict, to_toml
    from headway.console.machine.memory import memory_report, memory_table, predictable
    from headway.console.machine.preflight import (
        check_own_block,
        check_own_rules,
        own_corpus_folder,
    )
    from headway.console.machine.traffic import traffic_report, traffic_table

    config = own_corpus_folder(config)
    check_own_block(config)
    check_own_rules(config)
    known = predictable(config)
    if as_json:
        found = (
            {"memory": [], "traffic": {}}
            if isinstance(known, str)
            else {"memory": memory_table(known), "traffic": traffic_table(known)}
        )
        typer.echo(to_json({**to_dict(config), **found}))
        return
    typer.echo(to_toml(config).rstrip())
    lines = [f"memory and traffic are not predicted: {known}"]
    if not isinstance(known, str):
        lines = [*memory_report(known), *traffic_report(known)]
    for line in (_architecture(config), *lines):
        typer.echo(f"# {line}")


def _architecture(config: RunConfig) -> str:
    """The model with everything that its preset and defaults fill in, as a line."""
    model = config.model.architecture
    keys = ("norm", "mlp", "positions", "bias", "block", "tied", "qk_norm")
    numbers = ("kv_heads", "head_dim", "ffn", "padded_vocab_size")
    words = [f"{key}={getattr(model, key)}" for key in (*keys, *numbers)]
    return f"the model has {', '.join(words)}"


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt too, so that a start which it cuts short cleans up.

    Repeated signals within a moment count as one: they must not cut the cleaning short as well.
    """
    from headway.console.live.interrupts import STOPS, TOGETHER_S

    last_s = float("-inf")

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last_s
        before_s, last_s = last_s, time.monotonic()
        if last_s - before_s > TOGETHER_S:
            signal.default_int_handler(number, frame)

    before = {number: signal.signal(number, interrupt) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _launch(
    config: Path,
    settings: list[str],
    name: str | None,
    cluster: Cluster,
    as_json: bool,
    *,
    is_followed: bool,
) -> Run:
    """Launch the run; if it is followed, signals wait for who stops it with a checkpoint."""
    from headway.console.live.interrupts import STOPS

    report = reporter(as_json)
    try:
        started = cluster.launch(config, settings, name=name, measure=True, report=report)
    except KeyboardInterrupt:
        typer.echo("interrupted: launch cancelled, nothing left running", err=True)
        raise
    if is_followed:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    return started


def _stay(run: Run, as_json: bool) -> int:
    """Follow the run to its end and print the summary; returns the exit code."""
    if (pods := on_pods(run)) is not None:
        return pods.stay(as_json)
    from headway.console.live.follow import Follower
    from headway.console.live.summary import report, summarise

    follower = Follower(run, peak=run.peak, as_json=as_json)
    outcome = follower.follow(stop_on_interrupt=True)
    if outcome == "detached":
        return 0
    summary = summarise(run, write_trace=True)
    emit(summary, as_json, report(summary))
    return 1 if outcome == "failed" else 0
