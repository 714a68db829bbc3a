"""What must be true of a disturbed run, beside what ``aftermath`` finds degraded."""

from __future__ import annotations

from typing import Any

from benchmarks.resources import grown


def judge(report: dict[str, Any], reference: str) -> list[str]:
    """What is wrong with a disturbed run; empty when all promises hold."""
    wrong = [f"stopped by {report['stopped_by']}"] if report["stopped_by"] else []
    if report["outcome"] != "finished":
        wrong.append(f"outcome {report['outcome']}")
    if report["digest"] != reference:
        wrong.append(f"digest {report['digest']} is not the undisturbed {reference}")
    for row in report["faults"]:
        if row["survivors_with_new_pid"]:
            wrong.append(f"{row['fault']}: ranks {row['survivors_with_new_pid']} changed pid")
        bad = {n: state for n, state in row["nodes"].items() if state not in ("active", "spare")}
        if bad:
            wrong.append(f"{row['fault']}: nodes {bad} afterwards")
        if row["spares_the_generation"] and row["generations"]:
            wrong.append(f"{row['fault']}: generations {row['generations']} began")
        again = [
            report["redone_steps"].get(str(generation), 0) for generation in row["generations"]
        ]
        # what loses the snapshots in memory goes back to a checkpoint
        if not row["goes_back"] and any(count > 1 for count in again):
            wrong.append(f"{row['fault']}: completed steps done again {again}")
    if len(report["faults"]) != report["num_faults"]:
        wrong.append(f"only {len(report['faults'])} of {report['num_faults']} faults were struck")
    if len(report["resources"].get(report["witness"], ())) <= len(report["faults"]):
        wrong.append(f"{report['witness']} was not watched through all faults")
    if gaps := report["missing_steps"]:
        wrong.append(f"no metrics of {len(gaps)} steps at the end: {gaps[:5]}")
    wrong += report["degraded"]
    wrong += grown(report["resources"])
    return wrong
