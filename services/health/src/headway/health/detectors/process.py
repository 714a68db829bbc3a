"""Detects worker processes that have ended or been stopped."""

from __future__ import annotations

from headway.common.wire.messages.health import AgentBeat, Evidence, Verdict, WorkerSignals
from headway.health.detectors.episodes import Episodes, Key, Since, fact

ENDED = frozenset({"gone", "Z", "X", "x"})
STOPPED = frozenset({"T"})
"""Not ``t``: a process held by a debugger or profiler continues when released."""
_OF_BUCKETS = frozenset({"ALL_GATHER", "REDUCE_SCATTER"})
PROCESS_KINDS = frozenset({"crash", "stopped", "silence"})
"""Kinds of one worker's episode; each may become the next worse one."""


def alive_processes(beat: AgentBeat) -> frozenset[tuple[int, int]]:
    """Pid and start of the processes that a beat does not show as ended."""
    return frozenset(
        (worker.pid, worker.start_ticks) for worker in beat.workers if worker.state not in ENDED
    )


def process_key(node: int, worker: WorkerSignals) -> Key:
    """Identifies the episode of one process: its successor in the rank has another."""
    return ("worker", node, worker.rank, worker.pid, worker.start_ticks)


def judge_process(
    episodes: Episodes, node: int, worker: WorkerSignals, beat_s: float
) -> list[Verdict]:
    """Crash and stop from one beat; a process that runs again closes its episode.

    ``beat_s`` is the time between two beats: it happened between this one and the one before.

    ``done`` (exited with code 0) is not a problem, nor are other states.
    """
    key, has_ended = process_key(node, worker), worker.state in ENDED
    if not has_ended and worker.state not in STOPPED:
        known = episodes.get(key)
        if known is None or known.kind != "stopped":
            return []
        return episodes.close(key, fact("proc", "state", worker.state))
    state = fact("proc", "state", worker.state)
    return episodes.report(
        key,
        "crash" if has_ended else "stopped",
        (state, *_last_words(worker)) if has_ended else (state,),
        node=node,
        rank=worker.rank,
        pid=worker.pid,
        generation=worker.generation,
        since=Since(beat_s / 2, beat_s / 2),
    )


def close_replaced(episodes: Episodes, node: int, worker: WorkerSignals) -> list[Verdict]:
    """Close episodes of earlier processes of a rank once another has it in a later generation.

    The same process may have it again, after an error by which it had left its generation.
    """
    closed: list[Verdict] = []
    for key, verdict in episodes.of_rank(worker.rank):
        is_earlier = verdict.kind in PROCESS_KINDS and (
            verdict.pid != worker.pid or verdict.kind == "crash"
        )
        if is_earlier and worker.generation > verdict.generation:
            value = f"pid {worker.pid} on node {node} in generation {worker.generation}"
            closed += episodes.close(key, fact("flight", "replaced_by", value))
    return closed


def _last_words(worker: WorkerSignals) -> tuple[Evidence, ...]:
    action = fact("flight", "last_action", describe_action(worker))
    if worker.exit_code is None:
        return fact("proc", "last_words", "none: the process left no message"), action
    code = fact("proc", "exit_code", str(worker.exit_code))
    return code, fact("proc", "last_words", worker.reason), action


def describe_action(worker: WorkerSignals) -> str:
    """A rank's position, for people."""
    noun = "bucket" if worker.open_kind in _OF_BUCKETS else "micro-batch"
    where = (
        f"{worker.open_kind} of {noun} {worker.open_micro_batch}"
        if worker.open_kind
        else "between actions"
    )
    return f"{where}, after step {worker.step}, {worker.age_s:.1f} s ago"
