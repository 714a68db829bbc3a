"""A finding about slow steps in words: who, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from headway.common.wire.messages.health import Cause
from headway.health.diagnosis.diagnosis import Diagnosis, Observation, Subject, ranks_in_words
from headway.health.slowness.findings import Slowness
from headway.health.slowness.steps import StepTable

_WHAT: Mapping[Cause, str] = {
    "compute": "computes slower than {than}: {times} the time of its passes",
    "data": "waits for its data: {share} of the time of the passes in each step",
    "garbage_collection": "collects garbage: {share} of the time of the passes in each step",
    "checkpoint_write": "waits for its snapshots: {share} of the time of the passes in each step",
    "host_stall": "enters collectives late: {share} of the time of the passes in each step",
    "network": "has a slow network: transfers add {share} of the time of the passes",
}
_OF_NO_RANK: Mapping[Cause, str] = {
    "stage_imbalance": "{place} has more work than the other stages: its passes take {times} as "
    "long",
    "data": "ranks wait for data: {share} of the time of the passes in each step",
    "garbage_collection": "garbage collections pause one rank after another: {share} of the time "
    "of the passes",
    "checkpoint_write": "ranks wait for snapshots: {share} of the time of the passes",
    "sequence_imbalance": "replicas have unequal sequences: {share} of the time of the passes is "
    "lost to the longest",
    "host_noise": "short stalls move between ranks: {share} of the time of the passes is lost",
    "launch_skew": "steps take longer although the passes do not: by {share} of the time of the "
    "passes",
}
_DO: Mapping[Cause, str] = {
    "compute": "check what else runs on {nodes}, and the clocks and temperatures there; `headway "
    "drain` if this persists",
    "data": "look at the storage that {nodes} reads, and at its data service",
    "garbage_collection": "collect on all ranks in the same step, or find what fills the memory",
    "checkpoint_write": "compare the memory and disk of {nodes}; save less often",
    "host_stall": "take the stacks of these ranks while a step runs, and see what else runs on "
    "{nodes}",
    "network": "compare the links of {nodes} with `headway health pairwise`",
    "stage_imbalance": "give {place} fewer layers; the first stage also has the embedding, the "
    "last one the output layer and the loss",
    "sequence_imbalance": "give micro-batches of equal length to all replicas",
    "host_noise": "bind the ranks to cores, and stop other services on the nodes",
    "launch_skew": "restart the ranks together; then find what differs in how they are launched",
}


def diagnosis(one: Slowness, table: StepTable) -> Diagnosis:
    """The finding as a person and a program can act on it."""
    # a stage is held against its own other steps
    has_peers = table.grid.dp > 1 and len(one.ranks) <= table.grid.tp
    node_of = table.nodes_of(one.ranks, one.until).tolist()
    nodes = sorted(set(node_of) - {-1})
    names = {"share": f"{one.excess:.0%}", "times": f"{1 + one.excess:.2f}x",
             "than": "its peers" if has_peers else "usual",
             "nodes": _nodes(nodes), "place": one.place}  # fmt: skip
    rest = 1 - one.certainty
    return Diagnosis(
        "slow",
        one.cause,
        f"{_who(one)}{(_WHAT if one.ranks else _OF_NO_RANK)[one.cause].format(**names)}, "
        f"{_when(one, table)}",
        culprits=tuple(
            Subject(rank, f"node {node}" if node >= 0 else "")
            for rank, node in zip(one.ranks, node_of, strict=True)
        ),
        where=one.place,
        why=(*one.why, *one.notes),
        do=_DO[one.cause].format(**names),
        confidence=round(one.certainty, 3),
        alternatives=tuple((what, round(share * rest, 3)) for what, share in one.alternatives),
        since_step=int(table.steps[0]) if one.since is None else one.since,
        until_step=one.until,
        evidence=(Observation("summaries", f"{len(table.steps)} steps of {_num_known(table)} "
                              "ranks"),),
    )  # fmt: skip


def _who(one: Slowness) -> str:
    if not one.ranks:
        return ""
    if one.is_one_of:
        return f"one of {ranks_in_words(one.ranks)} ({one.place}) "
    return f"{one.place or ranks_in_words(one.ranks)} "


def _when(one: Slowness, table: StepTable) -> str:
    first = (
        f"step {one.since}" if one.since is not None else f"the first known step, {table.steps[0]},"
    )
    return (
        f"since {first.rstrip(',')}" if one.until is None else f"from {first} to step {one.until}"
    )


def _nodes(nodes: list[int]) -> str:
    if not nodes:
        return "the nodes"
    numbers = ", ".join(map(str, nodes[:4])) + (" and others" if len(nodes) > 4 else "")
    return f"node{'s' if len(nodes) > 1 else ''} {numbers}"


def _num_known(table: StepTable) -> int:
    return int((table.nodes >= 0).any(axis=0).sum())
