"""``headway config``: resolved configurations, the origin of each setting, differences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from headway.common.cli import AsJson
from headway.common.help_pages import page
from headway.common.output import Table, emit
from headway.console.commands.options import RUNS, RunsDir, complete_runs, find_run
from headway.console.commands.pages import LOOK, add_group

if TYPE_CHECKING:
    from headway.trainer.config import RunConfig

WHAT_HELP = "Name of a run, or a TOML file; the newest run by default."


def register(app: typer.Typer) -> None:
    """Add the group."""
    examples = ("headway config show --origin", "headway config diff tiny my.toml")
    config = add_group(app, "config", "Show and compare configurations.", LOOK, examples)
    page(
        config,
        examples=("headway config show", "headway config show tiny --origin"),
        json="one object: the configuration's tables; with --origin a list: key, value, origin",
    )(show)
    page(
        config,
        examples=("headway config diff tiny tiny-2", "headway config diff tiny my.toml"),
        json="list: key, a, b",
    )(diff)


def show(
    what: Annotated[
        str | None,
        typer.Argument(metavar="RUN|FILE", help=WHAT_HELP, autocompletion=complete_runs),
    ] = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Say for each setting where its value comes from.")
    ] = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Print a resolved configuration."""
    from headway.common.config import to_dict, to_toml
    from headway.console.folder import config_origins

    _, config, origins = _resolved(what, runs_dir)
    if not origin:
        emit(to_dict(config), as_json, [to_toml(config).rstrip()])
        return
    rows = config_origins.rows(config, origins)
    records = [dict(zip(("key", "value", "origin"), row, strict=True)) for row in rows]
    cells = [(key, str(value), where) for key, value, where in rows]
    emit(records, as_json, [Table(cells, ("key", "value", "origin"))])


def diff(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="Name of a run, or a TOML file.", autocompletion=complete_runs
        ),
    ],
    b: Annotated[
        str | None, typer.Argument(metavar="B", help=WHAT_HELP, autocompletion=complete_runs)
    ] = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Show the settings in which two configurations differ."""
    from headway.common.config import diff as differing

    left, one, _ = _resolved(a, runs_dir)
    right, other, _ = _resolved(b, runs_dir)
    changed = differing(one, other)
    records = [{"key": key, "a": mine, "b": theirs} for key, (mine, theirs) in changed.items()]
    lines: list[str | Table] = [f"{left} and {right} have the same configuration"]
    if changed:
        cells = [(key, _cell(mine), _cell(theirs)) for key, (mine, theirs) in changed.items()]
        lines = [Table(cells, ("key", left, right))]
    emit(records, as_json, lines)


def _cell(value: Any) -> str | None:
    return None if value is None else str(value)


def _resolved(what: str | None, runs_dir: Path) -> tuple[str, RunConfig, dict[str, str]]:
    """Name, configuration and origins of a file or a run."""
    from headway.common.config import load
    from headway.console.folder import config_origins
    from headway.trainer.config import RunConfig

    if what is not None and (Path(what).is_file() or what.endswith(".toml")):
        config = load(RunConfig, [Path(what)])
        return what, config, config_origins.given(Path(what))
    run = find_run(what, runs_dir)
    return run.name, run.config, config_origins.of_run(run)
