"""What must be true of a run under faults: pure functions of its report, which say what is wrong.

What a place cannot observe is not in its report; what is there keeps these promises at every place.
The report of a scripted drill has ``faulty``: False for a control, the same without its fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.drill.look import WELL
from benchmarks.drill.resources import grown

Report = dict[str, Any]
Promise = Callable[[Report], list[str]]


def judge(report: Report, reference: str) -> list[str]:
    """What is wrong with a run under faults; empty when all promises hold.

    Args:
        report: of ``benchmarks.drill.drilled.drilled``.
        reference: digest of the undisturbed run.
    """
    wrong = [f"stopped by {report['stopped_by']}"] if report["stopped_by"] else []
    if report["outcome"] != "finished":
        wrong.append(f"outcome {report['outcome']}")
    if report["digest"] != reference:
        wrong.append(f"digest {report['digest']} is not the undisturbed {reference}")
    for row in report["faults"]:
        again = report.get("redone_steps", {})
        wrong += [f"{row['fault']}: {line}" for line in of_fault(row, again)]
    if len(report["faults"]) != report["num_faults"]:
        wrong.append(f"only {len(report['faults'])} of {report['num_faults']} faults were struck")
    watched = report.get("resources", {})
    if "witness" in report and len(watched.get(report["witness"], ())) <= len(report["faults"]):
        wrong.append(f"{report['witness']} was not watched through all faults")
    wrong += missing(report["missing_steps"])
    for table, epochs in report["epochs"].items():
        if epochs != sorted(epochs):
            wrong.append(f"{table}: rows of a former driver follow those of its successor")
    return wrong + report.get("degraded", []) + grown(watched)


def of_fault(row: Report, redone_steps: dict[str, int]) -> list[str]:
    """What is wrong after one fault."""
    wrong = []
    if row.get("survivors_with_new_pid"):
        wrong.append(f"ranks {row['survivors_with_new_pid']} changed pid")
    wrong += ill(row.get("nodes", {}))
    if row.get("limit_s"):
        row = {"first_step_s": math.inf, **row}
        wrong += late(row, "first_step_s", row["limit_s"], "all ranks stepping")
    if (row.get("limit_s") or "blamed" in row) and len(row["generations"]) != 1:
        wrong.append(f"generations {row['generations']} began, not one")
    if row.get("blamed", row.get("ranks")) != row.get("ranks"):
        wrong.append(f"ranks {row['blamed']} were named, not {row['ranks']}")
    if row.get("missing", row.get("ranks")) != row.get("ranks"):
        wrong.append(f"ranks {row['missing']} had not entered, not {row['ranks']}")
    if row.get("blamed_nodes"):
        wrong.append(f"nodes {row['blamed_nodes']} were called silent or replaced")
    if row["cost"] == "nothing" and row["generations"]:
        wrong.append(f"generations {row['generations']} began")
    again = [redone_steps.get(str(generation), 0) for generation in row["generations"]]
    if row["cost"] != "checkpoint" and any(count > 1 for count in again):
        wrong.append(f"completed steps done again {again}")
    if row.get("writes_after_fencing"):
        wrong.append(f"written after the fencing: {row['writes_after_fencing']}")
    if row.get("fences") and "writes_after_fencing" not in row:
        wrong.append("what it wrote after the fencing is not known")
    if row.get("pair_is_named") is False:
        wrong.append("no pair is named")
    if row.get("trains_on") is False:
        wrong.append("no steps meanwhile")
    given_up, to_blame = row.get("given_up_for_cuts", []), row.get("to_blame", [])
    # one of those to blame, or nobody
    if len(given_up) != bool(to_blame) or not set(given_up) <= set(to_blame):
        wrong.append(f"given up for cuts: {given_up}, not {to_blame}")
    return wrong


def ill(nodes: dict[Any, str]) -> list[str]:
    """Every node is active or a spare."""
    bad = {node: state for node, state in nodes.items() if state not in WELL}
    return [f"nodes {bad} afterwards"] if bad else []


def missing(steps: Sequence[int]) -> list[str]:
    """No step lacks its metrics."""
    return [f"no metrics of {len(steps)} steps: {list(steps[:5])}"] if steps else []


def left(report: Report) -> list[str]:
    """The run ended as it was asked to, and nothing of it or of a fault is left."""
    row, accepted = report["left"], report.get("outcomes", ("stopped",))
    wrong = [] if row["outcome"] in accepted else [f"run {row['outcome']}"]
    found = [
        f"{what} left: {row[what]}" for what in ("processes", "holders", "frozen") if row[what]
    ]
    return wrong + found


# ---- of several scripts -------------------------------------------------------------------------
def late(report: Report, key: str, limit_s: float, what: str) -> list[str]:
    """Within ``limit_s`` or not at all."""
    return [] if report[key] <= limit_s else [f"{what} not within {limit_s:g} s"]


def _same(report: Report, key: str, what: str) -> list[str]:
    before, after = report[f"{key}_before"], report[f"{key}_after"]
    return [] if before == after else [f"{what} changed from {before} to {after}"]


def same_workers(report: Report) -> list[str]:
    """Every rank keeps its process."""
    return _same(report, "pids", "the workers")


def same_generation(report: Report) -> list[str]:
    """No generation began."""
    return _same(report, "generation", "the generation")


def nodes_well(report: Report) -> list[str]:
    """Every node is active or a spare."""
    return ill(report["nodes"])


def no_gaps(report: Report) -> list[str]:
    """Every step up to the last has metrics."""
    steps = report["metrics"]
    return missing(sorted(set(range(steps[-1] + 1)) - set(steps)))


def from_source(source: str, control: str) -> Promise:
    """The state after the fault came from ``source``; in a control from ``control``, empty for
    any."""

    def promise(report: Report) -> list[str]:
        wanted = source if report["faulty"] else control
        is_right = report["source"] == wanted or not wanted
        return [] if is_right else [f"state came from {report['source']!r} and not from {wanted!r}"]

    return promise


def _named(report: Report, word: str) -> list[str]:
    """An event says what was broken, and only when it was."""
    is_named = any(word in str(row) for row in report["events"])
    if report["faulty"] and not is_named:
        return [f"no event names {word}"]
    return [f"an event blames {word} without a fault"] if is_named > report["faulty"] else []


# ---- of one script ------------------------------------------------------------------------------
def epochs_rise(report: Report) -> list[str]:
    """D1: a successor has a higher epoch, and the old leader writes nothing more."""
    wrong = []
    if report["faulty"] and not report["epoch_after"] > report["epoch_before"]:
        wrong.append(f"epoch {report['epoch_after']} is not above {report['epoch_before']}")
    if report["epochs"] != sorted(report["epochs"]):
        wrong.append("the old epoch wrote events after the new one had begun")
    return wrong


def one_monitor_listens(report: Report) -> list[str]:
    """D2: no node is given up, and one monitor is left that its agents can find."""
    lost = [row for row in report["events"] if row["name"] == "node_lost"]
    wrong = [f"node {row['fields'].get('node')} was lost" for row in lost]
    if report["monitors"] != 1:
        wrong.append(f"{report['monitors']} monitors")
    return wrong + ([] if report["listens"] else ["no announced monitor listens"])


def executors_live(report: Report) -> list[str]:
    """D3: no executor ends."""
    number = report["executors"]
    return [] if number == 3 else [f"{number} of 3 executors lived while the disk was full"]


def arena_named(report: Report) -> list[str]:
    """D4: the damaged file is named."""
    return _named(report, report["file"])


def digest_or_refusal(report: Report) -> list[str]:
    """D5: the run refuses by name, or ends with the right weights; only a fault is named."""
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


def debugger_attached(report: Report) -> list[str]:
    """D7: there was a debugger."""
    is_missing = report["faulty"] and not report["attached"]
    return ["the debugger never held the rank"] if is_missing else []


def dataloader_named(report: Report) -> list[str]:
    """D8: the daemon is blamed."""
    return _named(report, "dataloader")


def old_worker_ended(report: Report) -> list[str]:
    """D9: where a generation begins, the node's old worker ends."""
    if report["generation_after"] == report["generation_before"]:
        return []
    wrong = [] if report["faulty"] else ["a generation began without a fault"]
    return wrong + (["the old worker of the node still runs"] if report["old_worker_lives"] else [])


def metrics_continue(report: Report) -> list[str]:
    """D10: metrics are stored soon after, although the clock went back."""
    wrong = late(report, "metrics_s", 10, "new metrics")
    if report["faulty"] and not -125 < report["clock_moved_s"] < -115:
        wrong.append(f"the clock moved by {report['clock_moved_s']:.1f} s and not by -120 s")
    return wrong


def one_step_again(report: Report) -> list[str]:
    """D11: one step is repeated at most."""
    number = report["steps_again"]
    return [] if 0 <= number <= 1 else [f"{number} steps again"]


def fails_by_name(report: Report) -> list[str]:
    """D12: after a few recoveries, with the exception in the reason."""
    outcome, recoveries = report["outcome"], report["recoveries"]
    if not report["faulty"]:
        return [] if outcome == "" else [f"the run ended: {outcome}"]
    if outcome != "failed":
        return [f"not failed but {outcome or 'running'} after {recoveries} recoveries"]
    wrong = [f"failed only after {recoveries} recoveries"] if recoveries > 8 else []
    if not any(word in report["detail"] for word in report["words"]):
        wrong.append(f"{report['detail']!r} names none of {report['words']}")
    return wrong


def refused_and_kept(report: Report) -> list[str]:
    """D13: the run refuses by name to start, and removes no checkpoint."""
    wrong = []
    if report["outcome"] != "failed" or "every checkpoint is damaged" not in report["detail"]:
        wrong.append(f"not refused by name: {report['outcome']}, {report['detail']!r}")
    return wrong + ([] if report["kept"] else ["damaged checkpoints were removed"])


def not_started_over(report: Report) -> list[str]:
    """D14: the run never begins anew."""
    is_anew = any(row["name"] == "started_over" for row in report["events"])
    return ["the run started over"] if is_anew else []


def steps_meanwhile(report: Report) -> list[str]:
    """D15: the run trains on while its folder hangs."""
    is_stuck = report["steps_meanwhile"] < 1
    return ["no step, or no status, while the folder was hanging"] if is_stuck else []
