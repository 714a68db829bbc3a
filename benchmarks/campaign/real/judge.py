"""Judges what was said about each injection, and what it has cost: pure functions of the rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.campaign.real.kinds import INJECTIONS, Injection

Row = Mapping[str, Any]
"""Of ``benchmarks.campaign.real.run``; ``said`` has the accusing verdicts in their order, each with
``is_right`` and ``accuses``: the ``target``, ``nobody`` or an ``innocent``."""
LEAST_NAMED = 0.99
HANG_LATE_S, HANG_LATE_STEPS = 5.0, 2.0
"""A hang is named at most the longer of these after its limit."""
SLOW_STEPS = 20
BY_NAME = {one.name: one for one in INJECTIONS}


def wrong_with(row: Row) -> list[str]:
    """What is wrong after one injection; empty if nothing is.

    A first verdict on the target's group, or on how it ended, may be narrowed by the right one.
    """
    one = BY_NAME[row["injection"]]
    wrong = [f"the run did not step again: {row['error']}"] if row["error"] else []
    if row["innocents"]:
        wrong.append(f"ended beside its target: {', '.join(row['innocents'])}")
    if row["is_target_ended"] and not one.ends and not one.may_end:
        wrong.append("its target was ended although it worked")
    wrong += [
        f"{said['text']} was accused" for said in row["said"] if said["accuses"] == "innocent"
    ]
    if one.says and not is_named(row) and not is_healed(row):
        wrong.append("nothing right was said")
    elif is_named(row) and not is_first_right(row) and row["said"][0]["accuses"] != "target":
        wrong.append(f"the first verdict was {row['said'][0]['text']}")
    elif not one.says and row["said"]:
        wrong.append(f"{row['said'][0]['text']}, where nothing is wrong")
    return wrong + _late(one, row)


def is_named(row: Row) -> bool:
    """Whether one of the verdicts is right."""
    return any(said["is_right"] for said in row["said"])


def is_healed(row: Row) -> bool:
    """Whether its target was replaced before anything had to be said about it."""
    may_heal = BY_NAME[row["injection"]].may_heal
    return bool(may_heal and row["is_target_ended"] and not row["said"])


def is_first_right(row: Row) -> bool:
    """Whether the first of them is."""
    return bool(row["said"]) and bool(row["said"][0]["is_right"])


def _first(row: Row, key: str) -> float:
    """Of the first right verdict."""
    return next((float(said[key]) for said in row["said"] if said["is_right"]), math.inf)


def _late(one: Injection, row: Row) -> list[str]:
    if not is_named(row):
        return []
    if one.goal == "hang":
        most_s = row["hang_limit_s"] + max(HANG_LATE_S, HANG_LATE_STEPS * row["step_s"])
        took_s = _first(row, "after_s")
        return [f"named after {took_s:.1f} s, not {most_s:.1f} s"] if took_s > most_s else []
    if one.goal == "slow":
        steps = _first(row, "steps")
        return [f"named after {steps:.0f} steps, not {SLOW_STEPS}"] if steps > SLOW_STEPS else []
    if one.goal == "nan" and not row["is_layer_right"]:
        return [f"the tensor is not named as {row['tensor']}"]
    return []


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Shares and times of all rows."""
    faulty = [row for row in rows if BY_NAME[row["injection"]].says and not is_healed(row)]
    accused = Counter(said["accuses"] for row in rows for said in row["said"])
    named = [row for row in faulty if is_named(row)]
    quiet = [row for row in rows if not BY_NAME[row["injection"]].says]
    nans = [row for row in rows if BY_NAME[row["injection"]].goal == "nan"]
    return {
        "injections": len(rows),
        "to_be_named": len(faulty),
        "healed_before": sum(map(is_healed, rows)),
        "named_right": share(len(named), len(faulty)),
        "top_1": share(sum(map(is_first_right, faulty)), len(faulty)),
        "precision": share(accused["target"], accused["target"] + accused["innocent"]),
        "recall": share(len(named), len(faulty)),
        "false_alarms": accused["innocent"] + sum(bool(row["said"]) for row in quiet),
        "killed_innocents": sum(len(row["innocents"]) for row in rows),
        "stepped_again": share(sum(not row["error"] for row in rows), len(rows)),
        "nan_with_layer": f"{sum(bool(row['is_layer_right']) for row in nans)} of {len(nans)}",
        "seconds_to_verdict": _times(named, "after_s"),
        "steps_to_verdict": _times(named, "steps"),
        "confusion": _confusion(rows),
    }


def share(part: int, whole: int) -> float:
    """1 of nothing."""
    return round(part / whole, 4) if whole else 1.0


def _times(rows: Sequence[Row], key: str) -> dict[str, list[float]]:
    """By injection: the least, the median and the most."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["injection"], []).append(round(_first(row, key), 2))
    ordered = {name: sorted(times) for name, times in sorted(found.items())}
    return {name: [one[0], one[len(one) // 2], one[-1]] for name, one in ordered.items()}


def _confusion(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Injection -> kind and cause of the first accusing verdict -> how often."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        first = row["said"][0] if row["said"] else None
        said = f"{first['kind']} ({first['cause']})" if first else "nothing"
        found.setdefault(row["injection"], Counter())[said] += 1
    return {name: dict(count) for name, count in sorted(found.items())}


def missed(rows: Sequence[Row]) -> list[str]:
    """The goals that are not reached: the reasons of the exit code."""
    found = figures(rows)
    wrong = [
        f"{row['layout']} {row['number']}, {row['injection']} of {row['target']}: {text}"
        for row in rows
        for text in wrong_with(row)
    ]
    goals = {
        f"{found['named_right']} named right, not {LEAST_NAMED}": (
            found["named_right"] < LEAST_NAMED
        ),
        f"{found['killed_innocents']} innocents were ended": found["killed_innocents"] > 0,
        f"{found['false_alarms']} false alarms": found["false_alarms"] > 0,
    }
    return [text for text, is_missed in goals.items() if is_missed] + wrong
