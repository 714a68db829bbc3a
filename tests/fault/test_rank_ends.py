"""Every way in which a rank can end unasked is one verdict, and none of them ends anybody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.common.node.arming import arm
from headway.common.node.run_dir import NodePaths
from headway.common.polling import wait_until
from headway.common.wire.messages.driver import Status
from headway.common.wire.messages.health import Verdict
from headway.console.run import Run
from headway.health.journal import newest_revisions, read_verdicts
from headway.testkit.journal import query

from benchmarks.drill import look
from benchmarks.drill.rig import Rig

LIMIT_S = 120.0
RANK = 1
LAYOUT = (
    "parallel.tp=1", "parallel.pp=1", "parallel.dp=2", "launch.nodes=1",
    "launch.ranks_per_node=2", "launch.spares=0",
)  # fmt: skip

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch, Rig() as rig:
        patch.chdir(Path(__file__).resolve().parents[2])
        launched = rig.launch("ends", *LAYOUT)
        yield launched
        rig.finish(launched)


def kill(run: Run) -> None:
    run.inject("kill", rank=RANK)


def stop(run: Run) -> None:
    run.inject("stop", rank=RANK)


def raise_error(run: Run) -> None:
    arm(NodePaths(run.folder.run_id, 0).failpoints, "worker.in_forward", "raise", {"rank": RANK})


def pids(status: Status) -> dict[int, int]:
    return {row.rank: row.pid for row in status.ranks}


def verdicts(run: Run) -> list[Verdict]:
    return newest_revisions(read_verdicts(run.folder.verdicts))


@pytest.mark.parametrize(
    ("strike", "kind", "cause", "is_replaced"),
    [
        (kill, "crash", "unknown", True),
        (stop, "stopped", "host_stall", True),
        (raise_error, "crash", "program_error", False),
    ],
)
def test_a_rank_that_ends_unasked_is_one_verdict_and_its_peer_lives(
    run: Run, strike: Callable[[Run], None], kind: str, cause: str, is_replaced: bool
) -> None:
    before = look.healthy(run, 4)
    known = {one.id for one in verdicts(run)}
    strike(run)
    after = look.healthy(run, before.step + 4)

    def new() -> list[Verdict]:
        """On a busy machine a rank may be slow as well."""
        found = [one for one in verdicts(run) if one.kind != "slow_rank"]
        return [one for one in found if one.id not in known]

    assert wait_until(
        lambda: bool(new()) and not any(one.is_open for one in new()), LIMIT_S, every_s=0.1
    ), new()
    look.healthy(run, after.step + 8)
    (verdict,) = new()
    assert (verdict.kind, verdict.cause, verdict.rank, verdict.node) == (kind, cause, RANK, 0)
    assert verdict.pid == pids(before)[RANK] and verdict.generation == before.generation
    assert before.generation < after.generation
    assert pids(after)[0] == pids(before)[0], "the peer is innocent"
    assert (pids(after)[RANK] != pids(before)[RANK]) == is_replaced
    words = [row.value for row in verdict.evidence if row.name == "last_words"]
    assert ("FailpointError" in "".join(words)) != is_replaced
    # a beat may show the process before its executor has seen it, which then acts on the verdict
    answers = ("none", "observe", *(["replaced worker"] if is_replaced else []))
    assert not verdict.taken or verdict.taken.startswith(answers), verdict.taken
    (lost,) = query(run, "SELECT COUNT(*) FROM events WHERE name = 'worker_lost'")[0]
    crashes = [one for one in verdicts(run) if one.kind in ("crash", "stopped")]
    assert lost == len([one for one in crashes if one.cause != "program_error"])
