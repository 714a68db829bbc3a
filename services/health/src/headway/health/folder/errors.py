"""The error that ended a job first, from the tracebacks of its logs."""

from __future__ import annotations

from headway.health.diagnosis.diagnosis import Diagnosis, Observation, Subject
from headway.health.dumps.frames import place
from headway.health.error_words import cause_of_error, is_of_others
from headway.health.folder.evidence import Evidence


def judge_errors(evidence: Evidence) -> list[Diagnosis]:
    """The first error that does not follow from another rank's; empty without one."""
    found = [
        (one.at_s if one.at_s is not None else float("inf"), place_in, file, one)
        for file, log in evidence.logs.items()
        for place_in, one in enumerate(log.failures)
        if one.frames and not is_of_others(f"{one.error} {one.message}")
    ]
    if not found:
        return _of_torchrun(evidence)
    _, _, file, first = min(found, key=lambda row: row[:3])
    rank = first.rank
    cause, do = cause_of_error(f"{first.error} {first.message}")
    summary = f"{'rank ' + str(rank) if rank >= 0 else 'a rank'} failed first"
    return [
        Diagnosis(
            "fault",
            cause,
            f"{summary}: {first.error}: {first.message[:160]}",
            culprits=(Subject(rank, evidence.node_of(rank)),) if rank >= 0 else (),
            where=place(first.frames),
            do=do,
            confidence=0.85 if first.at_s is not None else 0.75,
            since=first.at_s,
            evidence=(Observation(file, f"line {first.line}"),),
        )
    ]


def _of_torchrun(evidence: Evidence) -> list[Diagnosis]:
    """The first failure in torchrun's table, where no traceback says more."""
    roots = [
        (file, one) for file, log in evidence.logs.items() for one in log.workers if one.is_root
    ]
    if not roots or is_of_others(roots[0][1].message):
        return []
    file, first = roots[0]
    node = first.host or evidence.node_of(first.rank)
    is_killed = first.exit_code < 0
    end = f"signal {-first.exit_code}" if is_killed else f"exit code {first.exit_code}"
    return [
        Diagnosis(
            "fault",
            "unknown",
            f"rank {first.rank} ended first, with {end}: {first.message[:160]}",
            culprits=(Subject(first.rank, node),),
            why=("torchrun calls it the first failure; its own log was not collected",),
            do=f"read the log of rank {first.rank}"
            + (" and the kernel's log of its node: it was ended from outside" if is_killed else ""),
            confidence=0.6,
            since=first.at_s,
            evidence=(Observation(file, f"line {first.line}"),),
        )
    ]
