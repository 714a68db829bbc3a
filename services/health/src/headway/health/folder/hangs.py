"""Finds which ranks hold up a job, from dumps, watchdog lines and stacks."""

from __future__ import annotations

from collections.abc import Sequence

from headway.common.wire.messages.health import Cause
from headway.health.diagnosis.diagnosis import Diagnosis, Observation, Subject, ranks_in_words
from headway.health.diagnosis.mismatch import Mismatch, find_mismatch
from headway.health.diagnosis.positions import Scene
from headway.health.diagnosis.wait_for import Holdup, find_holdups
from headway.health.dumps.frames import Frame, place
from headway.health.folder.evidence import Evidence
from headway.health.folder.host_cause import host_cause
from headway.health.folder.scene import title, whole_scene
from headway.health.folder.standing import (
    device_stand,
    last_received,
    operation_of,
    waiting_ranks,
)

_DO: dict[Cause, str] = {
    "data_stall": "take out no machine yet: check the storage that {who} reads from",
    "checkpoint_write": (
        "no machine is at fault; if the checkpoint still grows, storage is slower than the "
        "time-out of the group: raise that, or save in the background; if not, repair the storage"
    ),
    "host_stall": "take a stack of {who} (`py-spy dump --pid PID`); {machine}",
    "device_hang": (
        "{again}replace the node of {who} and keep the dumps; run the GPU checks there before it "
        "is used again"
    ),
    "ended_early": "give all ranks the same number of steps, or have those that end early join in",
    "unreported": "look at the process of {who}, of which nothing was collected, and at its node",
    "network": "check the network between these ranks in pairs: headway health pairwise",
    "deadlock": "stop the job: its program makes ranks wait for each other, no machine is at fault",
}
_CAUSES: dict[str, Cause] = {
    "ended": "ended_early", "transport": "network", "deadlock": "deadlock",
    "unreported": "unreported",
}  # fmt: skip
"""Cause of each kind of holdup that has only one."""
_SURE = {"missing": 0.9, "device": 0.9, "ended": 0.9, "unreported": 0.6, "transport": 0.6,
         "deadlock": 0.7}  # fmt: skip


def judge_hang(evidence: Evidence) -> list[Diagnosis]:
    """Diagnose what holds up the ranks that wait; empty if no rank waits for another.

    Ranks of a job that runs wait as well, in the middle of a step: without a time-out in a log, a
    diagnosis says so.
    """
    scene = whole_scene(evidence)
    mismatch = find_mismatch(scene)
    if mismatch is not None:
        return [_of_mismatch(evidence, scene, mismatch)]
    return [_of_holdup(evidence, scene, one) for one in find_holdups(scene)]


def _of_mismatch(evidence: Evidence, scene: Scene, found: Mismatch) -> Diagnosis:
    name = title(evidence, found.group)
    majority = found.sides[0][1]
    odd = [rank for _, ranks in found.sides[1:] for rank in ranks]
    ahead = {
        rank: position.entered[found.group] - found.sequence
        for rank, position in scene.positions.items()
        if position.has_finished(found.group, found.sequence)
    }
    sides = ", ".join(
        f"{ranks_in_words(ranks)} {'do' if len(ranks) > 1 else 'does'} {operation}"
        for operation, ranks in found.sides
    )
    others = "".join(f"; rank {rank} is {n} operations ahead" for rank, n in ahead.items() if n > 0)
    # two against two, or one against one, do not tell who is wrong
    suspects = sorted({*odd, *ahead}) if len(majority) > len(odd) else sorted({*majority, *odd})
    return Diagnosis(
        "hang",
        "collective_mismatch",
        f"the ranks run different programs from operation {found.sequence} of {name} on: "
        f"{sides}{others}",
        culprits=tuple(_subject(evidence, rank) for rank in suspects),
        where=f"operation {found.sequence} of {name}",
        why=("members of a group must call the same operations of the same size in the same order",
             "which of the sides is wrong cannot be told from what they called"),
        do="stop the job: this is an error of its program, no machine is at fault; compare what "
        "these ranks do before that operation",
        confidence=0.95,
    )  # fmt: skip


def _of_holdup(evidence: Evidence, scene: Scene, found: Holdup) -> Diagnosis:
    name = title(evidence, found.group)
    operation = operation_of(scene, found)
    is_between = found.kind == "transport"
    culprits = () if is_between else tuple(_subject(evidence, rank) for rank in found.ranks)
    who = ranks_in_words(found.ranks)
    cause, why, where = _cause(evidence, scene, found)
    limit_s = _limit_s(evidence)
    whole = f"{operation} {found.sequence} of {name}"
    stand = device_stand(evidence, scene, found) if found.kind == "device" else ""
    summary = {
        "missing": f"{who} never began {whole}",
        "device": f"the device of {who} {stand}",
        "ended": f"{who} ended before {whole}, which the others wait in",
        "unreported": f"nothing is known of {who}, which {whole} waits for",
        "transport": f"all of {who} are in {whole}, and none makes progress",
        "deadlock": f"{who} wait for each other in a circle, at {whole} among others",
    }[found.kind]
    waiting = waiting_ranks(scene, found)
    if waiting:
        why = (*why, f"{ranks_in_words(waiting)} only wait{'s' * (len(waiting) == 1)}")
    nodes = {one.node for one in culprits}
    if len(culprits) > 1 and len(nodes) == 1 and "" not in nodes:
        why = (f"all of them are on {nodes.pop()}", *why)
    if not _has_timed_out(evidence):
        without = "no log shows a time-out" if evidence.logs else "without a log of the job"
        why = (*why, f"{without}, it may run: a healthy job looks the same in the middle of a step")
    if limit_s:
        why = (*why, f"the time-out of the group is {limit_s:.0f} s")
    return Diagnosis(
        "hang",
        cause,
        summary,
        culprits=culprits,
        victims=tuple(_subject(evidence, rank) for rank in waiting),
        where=where,
        why=why,
        do=_what_to_do(evidence, cause, who, has_stack=bool(where)),
        confidence=min(0.97, _SURE[found.kind] + (0.05 if where else 0.0)),
        since=_since(evidence, found),
        evidence=_observations(evidence, found),
    )


def _cause(evidence: Evidence, scene: Scene, found: Holdup) -> tuple[Cause, tuple[str, ...], str]:
    """The cause, what supports it, and where in the code."""
    if found.kind == "missing":
        frames = _frames(evidence, found.ranks[0])
        cause, words = host_cause(frames)
        does = f"rank {found.ranks[0]} {words} ({place(frames).split(' < ')[0]})"
        unknown = "no stack of it was collected, so what its process does is unknown"
        held = [
            f"its watchdog could not run for {one.seconds:.0f} s: the interpreter is held, or a "
            "call of CUDA hangs"
            for log in evidence.logs.values()
            for one in log.watchdog.stuck
            if one.rank == found.ranks[0]
        ]
        return cause, (does if frames else unknown, *held[:1]), place(frames)
    if found.kind == "device":
        last = last_received(scene, found.ranks[0])
        why = [f"rank {found.ranks[0]} {last}"] if last else []
        nodes = {node for rank in found.ranks if (node := evidence.node_of(rank))}
        kernels = [one for one in evidence.kernels.values() if one.host in nodes]
        if kernels and not any(one.news() for one in kernels):
            why.append("the kernel log there shows nothing")
        return "device_hang", tuple(why), ""
    return _CAUSES[found.kind], (), ""


def _what_to_do(evidence: Evidence, cause: Cause, who: str, *, has_stack: bool) -> str:
    has_looked = evidence.kernels or evidence.gpus
    shows = "shows" if has_looked else "was collected that could show"
    machine = f"nothing {shows} a fault of its machine"
    if cause == "host_stall" and has_stack:
        return f"look at that place in the code of {who}; {machine}"
    again = "" if _has_timed_out(evidence) else "if a second set of dumps shows the same, "
    return _DO[cause].format(who=who, machine=machine, again=again)


def _has_timed_out(evidence: Evidence) -> bool:
    return any(log.watchdog.timeouts for log in evidence.logs.values())


def _frames(evidence: Evidence, rank: int) -> Sequence[Frame]:
    for stack in evidence.stacks:
        if stack.rank == rank and stack.main is not None:
            return stack.main.frames
    return ()


def _limit_s(evidence: Evidence) -> float:
    limits = [e.timeout_ms / 1e3 for dump in evidence.dumps for e in dump.entries if e.timeout_ms]
    limits += [one.timeout_s for log in evidence.logs.values() for one in log.watchdog.timeouts]
    return max(limits, default=0.0)


def _since(evidence: Evidence, found: Holdup) -> float | None:
    """When the first of those that wait began to."""
    created = [
        entry.created_ns / 1e9
        for dump in evidence.dumps
        for entry in dump.entries
        if (entry.group, entry.sequence) == (found.group, found.sequence) and entry.created_ns
    ]
    logged = [
        one.at_s - one.ran_s
        for log in evidence.logs.values()
        for one in log.watchdog.timeouts
        if one.sequence == found.sequence and one.at_s is not None
    ]
    return min(created, default=None) or min(logged, default=None)


def _observations(evidence: Evidence, found: Holdup) -> tuple[Observation, ...]:
    rows = [
        Observation(name, f"line {one.line}: the watchdog of rank {one.rank} waits in {one.op} "
                          f"{one.sequence} for {one.ran_s:.0f} s")
        for name, log in evidence.logs.items()
        for one in log.watchdog.timeouts
        if one.sequence == found.sequence
    ]  # fmt: skip
    return tuple(rows[:8])


def _subject(evidence: Evidence, rank: int) -> Subject:
    known = evidence.places.get(rank)
    return Subject(rank, evidence.node_of(rank), known.pci if known else "")
