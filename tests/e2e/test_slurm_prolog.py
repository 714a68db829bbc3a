"""The prologs of the pages in a real Slurm: a bad node is drained, a good one works."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from headway.common.node.testing import wait_until
from headway.testkit.bed import Bed
from headway.testkit.machines.slurm import Slurm

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = "docs/howto/clusters.md"
"""Its script leaves draining to Slurm, and writes what failed to a file."""
PAGES = {"services/health/README.md": "headway health: shm", CLUSTERS: "Prolog error"}
"""Page -> the reason of the drained node."""
CONFIGURE = """
sed -i 's/sched_min_interval=0/&,nohold_on_prolog_fail/' /etc/slurm/slurm.conf
echo "Prolog={prolog}" >> /etc/slurm/slurm.conf
echo "PrologFlags=Alloc" >> /etc/slurm/slurm.conf
"""
LIMIT_S = 240.0
"""Slurm starts a job again two minutes after its prolog has failed."""


def prolog_of(page: str, reports: Path) -> str:
    """With this Python, and with a node on which shared memory is always too small."""
    script = re.search(r"```bash\n(#!/bin/bash\n.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert script is not None
    settings = (
        f"HEADWAY_BIN={Path(sys.executable).parent}\n"
        "export HEALTH_MIN_SHM_MIB=1\n"
        f"HEALTH_REPORT={reports}/$SLURMD_NODENAME.txt\n"
        '[ "$SLURMD_NODENAME" != node-0 ] || HEALTH_MIN_SHM_MIB=100000000\n'
    )
    return script[1].replace("#!/bin/bash\n", f"#!/bin/bash\n{settings}", 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES)
def test_a_job_leaves_a_bad_node_which_is_drained_and_runs_on_a_good_one(
    page: str, tmp_path: Path
) -> None:
    if reason := Bed.missing() or Slurm.missing():
        pytest.skip(f"no machines with Slurm here: {reason}")
    shared, disks = tmp_path / "shared", tmp_path / "disks"
    for folder in (shared, disks):
        folder.mkdir()
    prolog = shared / "prolog.sh"
    prolog.write_text(prolog_of(page, shared))
    prolog.chmod(0o755)
    with Bed(disks, nodes=3, shared=[shared], visible=[Path(sys.prefix)]) as bed:
        head, workers = bed.node(2), bed.nodes[:2]
        slurm = Slurm(shared / "slurm", head, workers, bed.disk)
        for node in bed.nodes:
            node.run(["sh", "-euc", CONFIGURE.format(prolog=prolog)])
        head.run(["scontrol", "reconfigure"])
        job = ["sbatch", "--requeue", "--output=/dev/null", f"--wrap=hostname > {shared}/ran"]
        head.run(job)
        wait_until(lambda: (shared / "ran").exists(), LIMIT_S, "the job runs")
        slurm.wait_for_empty_queue(LIMIT_S)
        assert (shared / "ran").read_text() == "node-1\n"
        drained = head.run(["sinfo", "--noheader", "--list-reasons", "--format=%N %E"]).stdout
        assert drained.split() == ["node-0", *PAGES[page].split()]
    if page == CLUSTERS:
        assert re.findall(r"(?m)^FAILED +(\w+)", (shared / "node-0.txt").read_text()) == ["shm"]
