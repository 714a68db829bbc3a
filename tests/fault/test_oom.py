"""A rank that the kernel ends for lack of memory: its exit, the kernel's own line, a recovery."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.polling import wait_until
from headway.common.wire.messages.health import Verdict
from headway.console.run import Run
from headway.controller.faults import cgroups
from headway.health.journal import newest_revisions, read_verdicts
from headway.testkit.journal import query

from benchmarks.drill import look
from benchmarks.drill.rig import Rig

KMSG = Path("/dev/kmsg")
LIMIT_S = 60.0
LAYOUT = (
    "parallel.tp=1", "parallel.pp=1", "parallel.dp=1", "launch.nodes=1",
    "launch.ranks_per_node=1", "launch.spares=0",
)  # fmt: skip

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not os.access(KMSG, os.R_OK), reason="needs a kernel log that can be read"),
    pytest.mark.skipif(cgroups.root("memory") is None, reason="needs a memory control group"),
]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch, Rig() as rig:
        patch.chdir(Path(__file__).resolve().parents[2])
        patch.setenv("HEADWAY_KMSG", str(KMSG))
        launched = rig.launch("oom", *LAYOUT)
        yield launched
        rig.finish(launched)


def killed_for_memory(run: Run) -> list[Verdict]:
    """Revisions of ends that the kernel's own line explains."""
    found = read_verdicts(run.folder.path / "verdicts.jsonl")
    return [
        one
        for one in found
        if one.kind == "crash"
        and any("oom-kill:" in row.value for row in one.evidence if row.name == "because")
    ]


def test_the_kernels_kill_is_the_cause_of_the_end_and_the_rank_comes_back(run: Run) -> None:
    before = look.healthy(run, 4)
    run.inject("oom", rank=0, duration_s=30.0)
    assert wait_until(lambda: bool(killed_for_memory(run)), LIMIT_S, every_s=0.05), read_verdicts(
        run.folder.path / "verdicts.jsonl"
    )
    killed = killed_for_memory(run)[0]
    assert (killed.node, killed.rank, killed.cause) == (0, 0, "out_of_memory"), killed
    lost_of = "SELECT fields FROM events WHERE name = 'worker_lost'"
    assert wait_until(lambda: bool(query(run, lost_of)), LIMIT_S, every_s=0.05)
    [(lost,)] = query(run, lost_of)
    # by whom, the executor knows only if it saw the process in that control group before
    # and if the monitor sees first that the process is gone, it is a crash
    assert json.loads(lost)["reason"].startswith(("killed", "crash"))
    assert look.healthy(run, before.step + 4).generation > before.generation
    newest = newest_revisions(read_verdicts(run.folder.path / "verdicts.jsonl"))
    findings = [one for one in newest if one.kind == "out_of_memory"]
    assert not any(one.is_open for one in findings), "one verdict for one end"
