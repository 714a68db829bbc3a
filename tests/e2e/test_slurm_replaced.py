"""On a real Slurm a machine that the run gives up is free for repair while the run trains on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from headway.common.config import to_toml
from headway.common.node.testing import wait_until
from headway.console.run import Run
from headway.launch.engines.slurm.config import SlurmConfig
from headway.testkit.journal import query
from headway.testkit.machines import Machines
from headway.testkit.machines.slurm import Slurm
from headway.testkit.machines.small import SMALL
from headway.testkit.machines.waits import is_stepping, until, until_recovered

TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"
DRAIN = ("scontrol", "update", "NodeName={name}", "State=DRAIN", "Reason={reason}")
LIMIT_S = 150.0


@pytest.fixture(scope="module")
def machines(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path
) -> Iterator[Machines]:
    if reason := Machines.missing() or Slurm.missing():
        pytest.skip(f"no machines with Slurm here: {reason}")
    folder = tmp_path_factory.mktemp("machines")
    with Machines(folder, count=5, visible=[corpus, cache, TINY.parent], way="slurm") as found:
        found.env["HEADWAY_CACHE"] = str(cache)
        yield found


@pytest.fixture
def draining(machines: Machines) -> Path:
    """A cluster whose bad machines an operator replaces."""
    config = SlurmConfig(
        str(machines.shared),
        sys.executable,
        scratch=str(machines.scratch),
        notice_s=45,
        fence=tuple(machines.remote.fence),
        drain=DRAIN,
        drain_prefix="[node_problem]",
    )
    file = machines.shared / "draining.toml"
    file.write_text(to_toml(config))
    cluster = machines.runs / ".draining"
    machines.headway("cluster", "create", cluster, "--slurm", file)
    return cluster


def _state(machines: Machines, node: int) -> dict[str, str]:
    """What Slurm knows of a machine."""
    words = ["scontrol", "show", "node", "--oneliner", machines.bed.node(node).name]
    text = machines.head.run(words).stdout
    return {
        "state": text.partition("State=")[2].split()[0],
        "reason": text.partition("Reason=")[2].partition(" [root@")[0],
    }


def _is_free(machines: Machines, node: int) -> bool:
    return _state(machines, node)["state"].split("*")[0] == "IDLE+DRAIN"


def _is_ready(node: int, status: Mapping[str, Any]) -> bool:
    """Whether it is a spare that has loaded torch."""
    key = str(node)
    return status["nodes"].get(key) == "spare" and key not in status["troubles"]


def _notes(machines: Machines, name: str) -> list[dict[str, Any]]:
    sql = "SELECT fields FROM events WHERE name = 'machine_delivered' ORDER BY id"
    return [json.loads(fields) for (fields,) in query(Run(machines.runs / name), sql)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_evicted_machine_is_free_for_repair_and_a_further_job_brings_a_spare(
    machines: Machines, corpus: Path, draining: Path
) -> None:
    assert machines.slurm is not None
    settings = (*SMALL, f"data.path={corpus}", "train.steps=100000")
    options = [*machines.options(settings, 3)[:-1], str(draining)]
    machines.headway("run", TINY, "--name", "e", "--detach", *options)
    before = until(machines, "e", lambda s: is_stepping(s, 6), "the run does not step")
    first = machines.slurm.machine_of(1).index
    machines.headway("evict", "e", "1")
    wait_until(lambda: _is_free(machines, first), what="IDLE+DRAIN", timeout_s=LIMIT_S)
    assert _state(machines, first)["reason"] == "[node_problem] evicted"
    before = until_recovered(machines, "e", before)
    until(machines, "e", partial(_is_ready, 1), "no further job joins")
    assert machines.slurm.machine_of(1).index != first
    assert [note["note"] for note in _notes(machines, "e")] == [""]

    # the machine of the batch script cannot leave, and the driver is on it
    host = machines.slurm.machine_of(0)
    machines.headway("evict", "e", "0")
    until_recovered(machines, "e", before)
    status = until(machines, "e", partial(_is_ready, 0), "no further job joins")
    assert status["epoch"] > before["epoch"], "its driver was on node 0"
    assert f"{host.name} stays allocated" in status["machines"]["0"]
    assert _state(machines, host.index)["state"].endswith("+DRAIN")
    assert machines.slurm.machine_of(0).index != host.index
    stepping = until(machines, "e", lambda s: is_stepping(s, 0), "it does not step")
    until(machines, "e", lambda s: is_stepping(s, stepping["step"] + 3), "it does not step on")
    machines.headway("stop", "e")
    for index in (first, host.index):  # jobs that clean them wait for their repair
        name = machines.bed.node(index).name
        machines.head.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
    machines.slurm.wait_for_empty_queue(90.0)
