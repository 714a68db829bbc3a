"""What must be true after each drill; pure functions of its report, which say what is wrong.

A report has ``faulty``: False for the control, the same drill without its fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Report = dict[str, Any]
Judge = Callable[[Report], list[str]]
WELL = frozenset({"active", "spare"})


def left(report: Report) -> list[str]:
    """After every drill: the run stopped when asked to,
    and nothing of it or of the fault is left."""
    row = report["left"]
    wrong = (
        [] if row["outcome"] in report.get("outcomes", ("stopped",)) else [f"run {row['outcome']}"]
    )
    return wrong + [
        f"{what} left: {row[what]}" for what in ("processes", "holders", "frozen") if row[what]
    ]


def late(report: Report, key: str, limit_s: float, what: str) -> list[str]:
    """Within ``limit_s`` or not at all."""
    return [] if report[key] <= limit_s else [f"{what} not within {limit_s:g} s"]


def same(report: Report, key: str, what: str) -> list[str]:
    """``KEY_before`` equals ``KEY_after``."""
    before, after = report[f"{key}_before"], report[f"{key}_after"]
    return [] if before == after else [f"{what} changed from {before} to {after}"]


def gaps(steps: list[int]) -> list[str]:
    """Every step up to the last has metrics."""
    missing = sorted(set(range(steps[-1] + 1)) - set(steps))
    return [f"metrics miss steps {missing[:5]}, {len(missing)} in all"] if missing else []


def nodes_well(report: Report) -> list[str]:
    """Every node is active or a spare."""
    bad = {node: status for node, status in report["nodes"].items() if status not in WELL}
    return [f"nodes {bad}"] if bad else []


def named(report: Report, key: str, word: str) -> list[str]:
    """An event says what was broken, and only when it was."""
    found = [row for row in report[key] if word in str(row)]
    if report["faulty"] and not found:
        return [f"no event names {word}"]
    return [f"an event blames {word} without a fault"] if found and not report["faulty"] else []


def d1(report: Report) -> list[str]:
    """A successor with a higher epoch leads; the old leader writes nothing more."""
    wrong = late(report, "recovered_s", 30, "running and three steps on")
    if report["faulty"] and not report["epoch_after"] > report["epoch_before"]:
        wrong.append(f"epoch {report['epoch_after']} is not above {report['epoch_before']}")
    epochs = report["epochs"]
    if epochs != sorted(epochs):
        wrong.append("the old epoch wrote events after the new one had begun")
    return wrong


def d2(report: Report) -> list[str]:
    """A locked journal costs nobody anything."""
    wrong = same(report, "generation", "the generation") + nodes_well(report)
    wrong += [f"node {row['fields'].get('node')} was lost" for row in report["lost"]]
    wrong += late(report, "recovered_s", 30, "running and three steps on")
    if report["monitors"] != 1:
        wrong.append(f"{report['monitors']} monitors")
    return wrong + ([] if report["listens"] else ["no announced monitor listens"])


def d3(report: Report) -> list[str]:
    """A full disk ends no executor, and afterwards all ranks step."""
    wrong = late(report, "recovered_s", 45, "all ranks stepping after there was room")
    if report["executors"] != 3:
        wrong.append(f"{report['executors']} of 3 executors lived while the disk was full")
    return wrong


def d4(report: Report) -> list[str]:
    """A damaged arena is named and not used."""
    wrong = late(report, "recovered_s", 45, "running and three steps on")
    source = "durable" if report["faulty"] else "arena"
    if report["source"] != source:
        wrong.append(f"state came from {report['source']!r} and not from {source!r}")
    return wrong + named(report, "events", report["file"])


def d5(report: Report) -> list[str]:
    """Flipped bits are named and never become weights."""
    said = any(word in str(report["events"]).lower() for word in report["words"])
    if report["left"]["outcome"] == "failed" and said:
        return []  # refused by name: better than wrong weights
    wrong = []
    if report["digest"] != report["reference"]:
        wrong.append(f"digest {report['digest']} is not the undisturbed {report['reference']}")
    if report["faulty"] and not said:
        wrong.append("no event says that a snapshot was damaged")
    if not report["faulty"] and said:
        wrong.append("an event calls a sound snapshot damaged")
    return wrong


def d6(report: Report) -> list[str]:
    """Ranks of a node that cannot fork run again, there or elsewhere."""
    return late(report, "recovered_s", 75, "all ranks running")


def d7(report: Report) -> list[str]:
    """A debugger may look at a rank."""
    wrong = same(report, "pids", "the workers") + same(report, "generation", "the generation")
    wrong += late(report, "recovered_s", 30, "running and three steps on")
    if report["faulty"] and not report["attached"]:
        wrong.append("the debugger never held the rank")
    return wrong


def d8(report: Report) -> list[str]:
    """A hung data daemon costs no rank, and is blamed itself."""
    wrong = same(report, "pids", "the workers")
    wrong += late(report, "recovered_s", 45, "running and three steps on")
    return wrong + named(report, "events", "dataloader")


def d9(report: Report) -> list[str]:
    """A silent executor costs no training, or at most its place until it is back."""
    wrong = late(report, "recovered_s", 45, "running and three steps on") + nodes_well(report)
    if report["generation_after"] != report["generation_before"]:
        if not report["faulty"]:
            wrong.append("a generation began without a fault")
        if report["old_worker_lives"]:
            wrong.append("the old worker of the node still runs")
    return wrong


def d10(report: Report) -> list[str]:
    """A clock that goes back loses no metrics."""
    wrong = late(report, "metrics_s", 10, "new metrics")
    wrong += gaps(report["metrics"])
    if report["faulty"] and not -125 < report["clock_moved_s"] < -115:
        wrong.append(f"the clock moved by {report['clock_moved_s']:.1f} s and not by -120 s")
    return wrong


def d11(report: Report) -> list[str]:
    """A run that is started again over its snapshots repeats one step at most."""
    wrong = late(report, "recovered_s", 60, "running and three steps on")
    if report["faulty"] and report["source"] != "arena":
        wrong.append(f"state came from {report['source']!r} and not from 'arena'")
    if not 0 <= report["steps_again"] <= 1:
        wrong.append(f"{report['steps_again']} steps again")
    return wrong


def d12(report: Report) -> list[str]:
    """The same exception, repeated, ends the run by name, whichever process dies meanwhile."""
    if not report["faulty"]:
        return [] if report["outcome"] == "" else [f"the run ended: {report['outcome']}"]
    if report["outcome"] != "failed":
        return [
            (
                f"not failed but {report['outcome'] or 'running'} after {report['recoveries']} "
                f"recoveries"
            )
        ]
    wrong = []
    if report["recoveries"] > 8:
        wrong.append(f"failed only after {report['recoveries']} recoveries")
    if not any(word in report["detail"] for word in report["words"]):
        wrong.append(f"{report['detail']!r} names none of {report['words']}")
    return wrong


def d13(report: Report) -> list[str]:
    """Damaged checkpoints end the run by name and stay; once they are repaired it continues."""
    wrong = late(report, "recovered_s", 60, "running and three steps on")
    if report["outcome"] != "failed" or "every checkpoint is damaged" not in report["detail"]:
        wrong.append(f"not refused by name: {report['outcome']}, {report['detail']!r}")
    if not report["kept"]:
        wrong.append("damaged checkpoints were removed")
    if report["source"] != "durable":
        wrong.append(f"state came from {report['source']!r} and not from 'durable'")
    return wrong


def d14(report: Report) -> list[str]:
    """Another folder is not taken for the run's own: the run waits for its checkpoints."""
    wrong = late(report, "recovered_s", 45, "running and three steps on")
    if report["source"] != "durable":
        wrong.append(f"state came from {report['source']!r} and not from 'durable'")
    if any(row["name"] == "started_over" for row in report["events"]):
        wrong.append("the run started over")
    return wrong


def d15(report: Report) -> list[str]:
    """While its folder hangs a run trains on and loses neither a process nor a metric."""
    wrong = same(report, "pids", "the workers") + same(report, "generation", "the generation")
    wrong += late(report, "recovered_s", 45, "running and twenty steps on") + nodes_well(report)
    if report["steps_meanwhile"] < 1:
        wrong.append("no step, or no status, while the folder was hanging")
    return wrong + gaps(report["metrics"])
