"""Finds ranks that are behind by the counts of NCCL's RAS, where no recorder's dump says more.

Counts are read while the job runs, so a single status never proves that it hangs.
"""

from __future__ import annotations

from headway.health.diagnosis.diagnosis import Diagnosis, Subject, ranks_in_words
from headway.health.dumps.ras import RasMember
from headway.health.folder.evidence import Evidence


def judge_counts(evidence: Evidence) -> list[Diagnosis]:
    """The processes that RAS cannot reach, else the minority that has launched least."""
    if evidence.dumps:
        return []
    gone = {process for report in evidence.ras for process in (*report.dead, *report.silent)}
    if gone:
        names = ", ".join(f"process {pid} on {host}" for host, pid in sorted(gone)[:8])
        return [
            Diagnosis(
                "hang",
                "unreported",
                f"NCCL does not reach {names}",
                culprits=tuple(Subject(node=host) for host in sorted({host for host, _ in gone})),
                do="see whether these processes live, and read the kernel's logs of their nodes",
                confidence=0.8,
            )
        ]
    behind = _behind(evidence)
    if not behind:
        return []
    ranks = tuple(sorted({member.rank for member in behind}))
    return [
        Diagnosis(
            "hang",
            "host_stall",
            f"{ranks_in_words(ranks)} {'have' if len(ranks) > 1 else 'has'} launched fewer "
            "operations than the others",
            culprits=tuple(Subject(member.rank, member.host) for member in behind),
            why=("one status does not prove a hang: the job may have been running on",),
            do=f"take a second status, and the Python stack of {ranks_in_words(ranks)}",
            confidence=0.6 if len(evidence.ras) == 1 else 0.75,
        )
    ]


def _behind(evidence: Evidence) -> list[RasMember]:
    """Members of a minority, of the newest status, in the communicator with most ranks first."""
    for report in reversed(evidence.ras):
        for known in sorted(report.communicators, key=lambda one: -one.size):
            for side in known.behind:
                if side.members and 2 * side.num_ranks < known.size:
                    return list(side.members)
    return []
