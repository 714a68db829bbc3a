"""``headway health pairwise`` and ``headway health peer``: the bad node among several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson
from headway.common.help_pages import page
from headway.common.output import emit

if TYPE_CHECKING:
    from headway.health.pairwise.coordinator import PairwiseReport
    from headway.health.pairwise.neighbours import NeighboursReport

HEALTHY, BAD, NOT_ENOUGH = 0, 1, 3
IDLE_LIMIT_S = 600.0
Keys = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder with peer.key and coordinator.key, made if missing; needed off loopback.",
    ),
]


def add_commands(app: typer.Typer) -> None:
    """Add both commands to ``headway health``."""
    page(
        app,
        examples=(
            "{command} --hosts hosts.txt --keys keys",
            "{command} --hosts hosts.txt --keys keys --json",
            "{command} --hosts hosts.txt --keys keys --neighbours",
        ),
        json="one object: schema, num_nodes, num_answered, is_enough, bad (node: reasons), notes, "
        "cpus and links of both rounds; with --neighbours bad_switches and switches instead of "
        "the last two",
    )(pairwise)
    page(
        app,
        examples=(
            "{command} --endpoint tcp://eth0:7711 --keys keys",
            "srun -N 8 {command} --endpoint tcp://10.0.0.0/16 --keys keys",
        ),
    )(peer)


def pairwise(
    hosts: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="A peer on each line: ADDRESS, or ADDRESS:PORT switch=NAME."
        ),
    ],
    keys: Keys = None,
    as_json: AsJson = False,
    neighbours: Annotated[
        bool,
        typer.Option("--neighbours", help="All nodes below a switch at once, not pairs of them."),
    ] = False,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Measurements at the same time; 256 at most."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A limit, as burst_s=1; repeatable."),
    ] = None,
) -> None:
    """Find the bad node among several, in two rounds of pairs.

    Each node needs a `headway health peer`. With `--neighbours` the nodes below each switch run an
    all-reduce, once in either direction. Exit code 0: no node is bad. 1: bad nodes are named. 2:
    wrong usage. 3: too few nodes answered to compare them.
    """
    from headway.common.config import load
    from headway.health.pairwise.config import PairwiseConfig
    from headway.health.pairwise.coordinator import find_bad_nodes
    from headway.health.pairwise.fleet import Fleet
    from headway.health.pairwise.hosts import read_hosts
    from headway.health.pairwise.keys import load_keys
    from headway.health.pairwise.neighbours import find_odd_neighbours

    config = load(PairwiseConfig, overrides=overrides or ())
    known = read_hosts(hosts)
    fleet = Fleet(known, load_keys(keys) if keys is not None else None, config, parallel)
    report: PairwiseReport | NeighboursReport
    if neighbours:
        report = find_odd_neighbours(known, fleet, config)
        is_bad = bool(report.bad or report.bad_switches)
        lines = [f"BAD     switch {name}: {why}" for name, why in report.bad_switches.items()]
    else:
        report = find_bad_nodes(known, fleet, config)
        is_bad, lines = bool(report.bad), []
    emit(report, as_json, [*lines, *_lines(report)])
    raise typer.Exit(NOT_ENOUGH if not report.is_enough else BAD if is_bad else HEALTHY)


def peer(
    endpoint: Annotated[
        str,
        typer.Option(
            metavar="ENDPOINT",
            help="tcp:// and an address, interface or network of this machine; :PORT, or :7711.",
        ),
    ],
    keys: Keys = None,
    idle_s: Annotated[
        float, typer.Option(metavar="SECONDS", help="End after so long without a request.")
    ] = IDLE_LIMIT_S,
) -> None:
    """Measure this machine when `headway health pairwise` asks."""
    from headway.health.pairwise.peer import PeerOptions, run_peer

    raise typer.Exit(run_peer(PeerOptions(endpoint, keys, idle_s)))


def _lines(report: PairwiseReport | NeighboursReport) -> list[str]:
    bad = [f"BAD     {node}: {reason}" for node, all_ in report.bad.items() for reason in all_]
    notes = [f"note    {note}" for note in report.notes]
    summary = f"{report.num_answered} of {report.num_nodes} nodes answered, {len(report.bad)} bad"
    return [*bad, *notes, summary]
