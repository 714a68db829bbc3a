"""Judges seeded traces with known faults: ``python -m benchmarks.campaign``.

Every trace comes from a drawn layout and the product's own schedule, is played until nothing
moves, and is judged twice: as a scene, by the wait-for graph alone, and by the beats of its agents,
through the whole state of a monitor. ``clean`` are healthy runs with pauses, ``scale`` is the time
for 12,288 ranks. ``slow`` are runs with and without stragglers, judged by the summaries of their
steps, with the time for 10,000 ranks.

Two parts run only if they are named: ``real`` injects faults into real runs of this machine, and
``peers`` gives recorders' dumps with known truth to other tools.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.campaign import clean, scale, slow, slow_scale
from benchmarks.campaign.judged import judge_scene
from benchmarks.campaign.live import judge_live
from benchmarks.campaign.outcome import Outcome, figures
from benchmarks.campaign.peers import side_by_side
from benchmarks.campaign.real import tier
from benchmarks.report import finish, parser

PARTS = ("scenes", "live", "clean", "slow", "scale")
NAMED_PARTS = ("real", "peers")
"""Not among those that run by default: hours of real runs, and tools that have to be installed."""
EXACT, CLASS, WRONG, ABSTAINED = 0.99, 0.98, 0.002, 0.03
FALSE_PER_10_000 = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Judge; the exit code is the number of goals that are missed."""
    made = parser(__doc__)
    made.add_argument(
        "--part",
        choices=(*PARTS, *NAMED_PARTS),
        action="append",
        help=f"by default {', '.join(PARTS)}",
    )
    made.add_argument("--seed", type=int, default=0, help="of the first trace")
    made.add_argument("--scenes", type=int, default=1000, help="traces judged as scenes")
    made.add_argument("--live", type=int, default=1500, help="traces judged by beats")
    made.add_argument("--clean", type=int, default=250, help="healthy runs of 40 steps")
    made.add_argument("--slow", type=int, default=600, help="runs of 50 steps with stragglers")
    made.add_argument("--ranks", type=int, default=64, help="most ranks of a scene")
    made.add_argument("--live-ranks", type=int, default=16, help="most ranks of a live run")
    tier.add_options(made)
    side_by_side.add_options(made)
    options = made.parse_args(argv)
    parts = options.part or PARTS
    found: dict[str, Any] = {}
    failures: list[str] = []
    if "scenes" in parts:
        found["scenes"] = _traces(options.seed, options.scenes, options.ranks, judge_scene)
        failures += _missed("scenes", found["scenes"])
    if "live" in parts:
        found["live"] = _traces(options.seed, options.live, options.live_ranks, judge_live)
        failures += _missed("live", found["live"])
    if "clean" in parts:
        found["clean"], more = _clean(options)
        failures += more
    if "slow" in parts:
        found["slow"], more = _slow(options)
        failures += more
    if "scale" in parts:
        found["scale"] = scale.measure(5)
        print(f"scale: {found['scale']}")
        if not found["scale"]["is_right"] or found["scale"]["graph_s"] > scale.GOAL_S:
            failures.append(f"scale: {found['scale']}")
    if "real" in parts:
        found["real"], more = tier.measure(options)
        failures += more
    if "peers" in parts:
        found["peers"], more = side_by_side.measure(options)
        failures += more
    return finish(options.out, failures, seed=options.seed, **found)


def _traces(
    seed: int, count: int, most: int, judge: Callable[[int, int], Outcome]
) -> dict[str, Any]:
    outcomes = [judge(one, most) for one in range(seed, seed + count)]
    return figures(outcomes)


def _missed(part: str, found: dict[str, Any]) -> list[str]:
    shown = {key: value for key, value in found.items() if not isinstance(value, dict | list)}
    print(f"{part}: " + ", ".join(f"{key} {value}" for key, value in shown.items()))
    for kind, row in found["confusion"].items():
        print(f"  {kind:32} " + ", ".join(f"{said} {count}" for said, count in row.items()))
    goals = {
        f"exact {found['exact']} < {EXACT}": found["exact"] < EXACT,
        f"class {found['class']} < {CLASS}": found["class"] < CLASS,
        f"wrong namings {found['wrong_share']} > {WRONG}": found["wrong_share"] > WRONG,
        f"abstained {found['abstained']} > {ABSTAINED}": found["abstained"] > ABSTAINED,
        f"{found['killed_innocents']} innocents killed": found["killed_innocents"] > 0,
        f"{found['false_alarms']} false alarms": found["false_alarms"] > 0,
    }
    rows = [f"{part}: {row}" for row in (*found["wrong"], *found["missed"])]
    print("\n".join(rows))
    return [f"{part}: {text}" for text, is_missed in goals.items() if is_missed]


def _clean(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    runs = [
        clean.judge_clean(seed, options.live_ranks // 2)
        for seed in range(options.seed, options.seed + options.clean)
    ]
    steps = sum(one.num_steps for one in runs)
    alarms = [f"seed {one.seed}: {said}" for one in runs for said in one.said]
    per_10_000 = round(1e4 * len(alarms) / max(steps, 1), 2)
    found = {
        "runs": len(runs),
        "steps": steps,
        "pauses": sum(one.num_pauses for one in runs),
        "false_alarms": alarms,
        "per_10_000_steps": per_10_000,
    }
    print(f"clean: {found}")
    is_missed = per_10_000 >= FALSE_PER_10_000
    return found, [f"clean: {per_10_000} false alarms per 10,000 steps"] if is_missed else []


def _slow(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    seeds = range(options.seed, options.seed + options.slow)
    found = slow.figures([slow.judge_slow(seed, options.live_ranks) for seed in seeds])
    found["scale"] = slow_scale.measure()
    for key, value in found.items():
        print(f"slow: {key} {value}" if key != "wrong" else "\n".join(value))
    return found, [f"slow: {text}" for text in slow.missed(found)]


if __name__ == "__main__":
    sys.exit(main())
