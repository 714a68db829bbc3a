"""Signs of faults in any order, lost, doubled and late: nothing fails, and no innocent is ended."""

from __future__ import annotations

from headway.common.wire.messages.health import Finding
from headway.health.client import response
from hypothesis import given, settings
from hypothesis import strategies as st

from services.health.tests.first_cause.played import (
    Played,
    closed_by_peer,
    flap,
    line,
    lost_gpu,
    oom_kill,
)

NUM_NODES, PER_NODE = 4, 2
RANKS = st.integers(0, NUM_NODES * PER_NODE - 1)
LATEST = 24
"""Beats within which the signs come."""


def sign_of(kind: str, rank: int, age_s: float) -> Finding:
    """A line or a counter as it is found, with its age."""
    match kind:
        case "oom":
            return oom_kill(1000 + rank, age_s=age_s)
        case "gpu":
            return lost_gpu(str(1000 + rank), age_s=age_s)
        case "flap":
            return flap(rank // PER_NODE)
        case "cleanup":
            text = f"NVRM: Xid (PCI:0000:3b:00): 45, pid={1000 + rank}"
            return line("xid_45", text, subject="gpu", name="0000:3b:00.0", age_s=age_s)
        case "loss":
            return line(
                "fabric_loss", "lost", source="net", subject="peer", name="10.0.0.1", age_s=age_s
            )
        case _:
            return closed_by_peer(rank, age_s)


WORDS = (
    None,
    "ValueError: bad shard [data.py:88]",
    "RuntimeError: Connection closed by peer [127.0.0.1]:2807",
    "RuntimeError: CUDA error: unspecified launch failure",
)
SIGNS = st.tuples(
    st.sampled_from(("oom", "gpu", "flap", "cleanup", "loss", "closed")),
    RANKS,
    st.integers(1, LATEST),
    st.floats(0.0, 30.0),
    st.integers(1, 2),
)
ENDS = st.tuples(RANKS, st.integers(1, LATEST), st.sampled_from(WORDS))
DOMAINS = st.sampled_from(({}, {"rack-0": (0, 1)}, {"a": (0, 1), "b": (2, 3)}))


@settings(deadline=None, max_examples=30)
@given(
    signs=st.lists(SIGNS, max_size=14),
    ends=st.lists(ENDS, max_size=4),
    silent=st.sets(st.integers(0, NUM_NODES - 1), max_size=2),
    domains=DOMAINS,
)
def test_no_innocent_is_ended_whatever_comes_when(
    signs: list[tuple[str, int, int, float, int]],
    ends: list[tuple[int, int, str | None]],
    silent: set[int],
    domains: dict[str, tuple[int, ...]],
) -> None:
    played = Played(NUM_NODES, PER_NODE, domains)
    played.silent = silent
    for beat in range(1, LATEST + 20):
        for kind, rank, at, age_s, times in signs:
            if at == beat:
                played.find(rank // PER_NODE, *[sign_of(kind, rank, age_s)] * times)
        for rank, at, reason in ends:
            if at == beat:
                played.end(rank, reason)
        played.run()
    gone = {rank for rank, _, _ in ends}
    broken = {rank // PER_NODE for kind, rank, *_ in signs if kind in ("gpu", "flap")}
    for verdict in played.verdicts:
        match response(verdict) if verdict.is_open else "observe":
            case "replace_worker" | "kill_worker":
                assert verdict.rank in gone
            case "replace_node":
                assert verdict.node in broken
                assert verdict.kind == "link_flapping" or verdict.rank in gone
            case other:
                assert other == "observe"
    assert_consistent(played)


def assert_consistent(played: Played) -> None:
    """Each verdict is one line of growing revisions, and victims are accused by none."""
    newest: dict[str, int] = {}
    for verdict in played.verdicts:
        assert verdict.revision > newest.get(verdict.id, -1), verdict.id
        newest[verdict.id] = verdict.revision
        if verdict.kind in ("peer_lost", "collective_timeout"):
            assert (verdict.rank, verdict.node) == (-1, -1)
