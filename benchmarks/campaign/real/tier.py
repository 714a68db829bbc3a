"""The tier of real injections: runs the layouts, one injection after the other, and reports."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.common.config import load
from headway.common.errors import HeadwayError
from headway.health.journal import read_verdicts
from headway.trainer.config import RunConfig

from benchmarks.campaign.real import own_cores
from benchmarks.campaign.real.judge import figures, missed, wrong_with
from benchmarks.campaign.real.kinds import (
    INJECTIONS,
    OF_HARDWARE,
    Injection,
    is_accusing,
    possible,
    refused,
)
from benchmarks.campaign.real.run import InjectedRun
from benchmarks.drill import look
from benchmarks.drill.catalogue import Strike
from benchmarks.drill.drilled import recover
from benchmarks.drill.means import why_not
from benchmarks.drill.rig import CONFIG, Rig
from benchmarks.drill.rig import SHAPE as SMALL
from benchmarks.drill.signs import stand_ins

LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "tp2-pp2": ("parallel.tp=2", "parallel.pp=2", "parallel.dp=1"),
    "tp2-dp2": ("parallel.tp=2", "parallel.pp=1", "parallel.dp=2"),
}
SHAPE = (
    "launch.nodes=2", "launch.ranks_per_node=2", "launch.spares=1", "launch.standbys=1",
    "model.layers=4", "model.hidden=128", "model.seq_len=128", "train.global_batch_size=16",
    "recovery.max_node_failures=1000", "health.digest_every=4", "health.replay_every=4",
    "health.log_quiet_s=10",
)  # fmt: skip
"""Four ranks with steps that are long enough to compare; a finding is over soon, so that the same
may be injected again."""
NANS_PER_RUN = 10
"""Of later skipped steps a run names every tenth only."""


@dataclass
class Found:
    """What the tier has found so far."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    """Layout -> what is not injected there -> why."""
    quiet: dict[str, list[str]] = field(default_factory=dict)
    """Layout -> verdicts of a run into which nothing was injected."""


def add_options(made: argparse.ArgumentParser) -> None:
    add = made.add_argument
    add("--injections", type=int, default=100, help="into real runs, over all layouts")
    add("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="of real runs")
    add("--only", nargs="+", default=[], metavar="NAME", help="inject only these into real runs")
    add("--nan", type=int, default=20, help="values that are not finite, beside --injections")
    add(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="TABLE.KEY=VALUE",
        help="of real runs",
    )
    add("--quiet-minutes", type=float, default=0.0, help="real runs without an injection, before")


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Inject and judge; returns the figures, and the goals that are missed."""
    found = Found()
    print(f"real: {own_cores.why_not() or 'every rank has cores for itself'}", flush=True)
    share = 1 / len(options.layouts)
    for place, layout in enumerate(options.layouts):
        count = round(share * options.injections * (place + 1)) - round(
            share * options.injections * place
        )
        rest = round(share * options.nan * (place + 1)) - round(share * options.nan * place)
        _on_layout(found, layout, options, count, rest, place)
    result = figures(found.rows)
    for key, value in result.items():
        print(f"real: {key} {value}" if key != "confusion" else _table(value))
    reasons = [f"{layout}: {one}" for layout, said in found.quiet.items() for one in said]
    failures = [f"without an injection: {one}" for one in reasons] + missed(found.rows)
    result |= {"refused": found.refused, "quiet": found.quiet, "rows": found.rows}
    return result, [f"real: {text}" for text in failures]


def _on_layout(
    found: Found, layout: str, options: argparse.Namespace, count: int, nans: int, place: int
) -> None:
    with ExitStack() as stack:
        rig = stack.enter_context(_rig(stack))
        settings = (*SHAPE, *LAYOUTS[layout], *options.overrides)
        config = load(RunConfig, [Path(CONFIG)], [*SMALL, *settings])
        found.refused[layout] = refused(config)
        for name, reason in found.refused[layout].items():
            print(f"{layout}: without {name}: {reason}", flush=True)
        found.quiet[layout] = []
        if options.quiet_minutes:
            found.quiet[layout] = _quiet(rig, layout, settings, options.quiet_minutes)
        rng = random.Random(f"{options.seed} {layout}")
        chosen = plan(rng, possible(config), count, options.only, first=place * count)
        plans = [chosen, *_nans(nans)]
        for number, wanted in enumerate(plans):
            rows = _inject(rig, f"{layout}-{number}", settings, wanted, rng)
            for row in rows:
                found.rows.append({"layout": layout, **row})
                _show(found.rows[-1])


def plan(
    rng: random.Random,
    injections: Sequence[Injection],
    count: int,
    only: Sequence[str] = (),
    first: int = 0,
) -> list[Injection]:
    """``count`` of them in turn, from the ``first`` on, so that each kind comes as often as any
    other, in an order that the seed decides.

    Broken hardware comes last: the driver gives up a node with a lost GPU at its next crash.
    """
    known = [one.name for one in injections]
    if unknown := [name for name in only if name not in known]:
        raise ValueError(
            f"{', '.join(map(repr, unknown))} cannot be injected here; "
            f"use some of: {', '.join(known)}"
        )
    wanted = [one for one in injections if not only or one.name in only]
    chosen = [wanted[(first + number) % len(wanted)] for number in range(count)]
    rng.shuffle(chosen)
    return sorted(chosen, key=lambda one: one.fault in OF_HARDWARE)


def _nans(count: int) -> list[list[Injection]]:
    """Runs of their own."""
    [nan] = [one for one in INJECTIONS if one.goal == "nan"]
    sizes = [min(NANS_PER_RUN, count - done) for done in range(0, count, NANS_PER_RUN)]
    return [[nan] * size for size in sizes]


def _rig(stack: ExitStack) -> Rig:
    """With a kernel log, counters, GPUs, a clock and a disk that faults may be written to."""
    own = {"own_clock": not why_not("clock"), "own_disk": not why_not("mount")}
    stack.enter_context(stand_ins())
    return Rig(**own)


def _inject(
    rig: Rig, name: str, settings: Sequence[str], wanted: Sequence[Injection], rng: random.Random
) -> Iterator[dict[str, Any]]:
    """Strike them one after the other in one run; a run that does not come back is replaced."""
    place: InjectedRun | None = None
    for number, one in enumerate(wanted):
        ranks = tuple(rng.sample(range(4), one.struck.ranks))
        strike = Strike(one.struck, ranks)
        try:
            if place is None:
                run = rig.launch(f"{name}-from-{number}", *settings)
                place = InjectedRun(rig, run, rng.randrange(1 << 30))
            place.current = one
            yield recover(place, strike) | {"number": number}
        except (HeadwayError, AssertionError, TimeoutError) as error:
            yield _lost(one, number, strike, place, f"{type(error).__name__}: {error}"[:600])
            if place is not None:
                place.finish()
            place = None
    if place is not None:
        place.finish()


def _lost(
    one: Injection, number: int, strike: Strike, place: InjectedRun | None, error: str
) -> dict[str, Any]:
    """The row of an injection after which the run did not come back, with what was said."""
    known = place.said_so_far() if place is not None and strike.struck_at_s else []
    row = {"injection": one.name, "number": number, "target": str(strike), "said": known}
    row |= {"innocents": [], "is_target_ended": False, "error": error}
    return row | {"hang_limit_s": 0.0, "step_s": 0.0, "tensor": "", "is_layer_right": False}


def _quiet(rig: Rig, layout: str, settings: Sequence[str], minutes: float) -> list[str]:
    """What is said of a run into which nothing is injected, which uses all cores."""
    run = rig.launch(f"{layout}-quiet", *settings)
    look.healthy(run, 20, limit_s=600.0)
    time.sleep(60 * minutes)
    found = read_verdicts(run.folder.verdicts)
    said = [f"{one.kind} of rank {one.rank}, node {one.node}" for one in found if is_accusing(one)]
    rig.finish(run)
    print(f"{run.name}: {minutes:g} quiet minutes, {len(said)} verdicts", flush=True)
    return said


def _show(row: Mapping[str, Any]) -> None:
    wrong = wrong_with(row)
    said = "; ".join(f"{one['text']} after {one['after_s']} s" for one in row["said"])
    print(
        f"  {row['layout']} {row['number']}: {row['injection']} of {row['target']}: "
        f"{said or 'nothing'} -> {'; '.join(wrong) or 'right'}",
        flush=True,
    )


def _table(confusion: Mapping[str, Mapping[str, int]]) -> str:
    rows = [
        f"  {kind:24} " + ", ".join(f"{said} {count}" for said, count in row.items())
        for kind, row in confusion.items()
    ]
    return "\n".join(["real: what was said first", *rows])
