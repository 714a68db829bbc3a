"""Starting nodes again and again leaves one init and one executor each."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from headway.common.node.janitor import processes_of
from headway.common.node.process import spawn
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.local import LocalEngine
from headway.launch.nodes import wait_for_node


@pytest.fixture
def cluster(here: Any) -> ClusterFolder:
    return ClusterFolder.create(here.folder / "cluster", nodes=1)


def test_a_start_repeated_before_the_executor_announced_itself_starts_no_second(
    here: Any, cluster: ClusterFolder
) -> None:
    engine = LocalEngine(cluster)
    for _ in range(3):
        engine.start_node(0)
    here.wait_until(lambda: len(processes_of(cluster.id)) == 2, "they show whose they are")
    wait_for_node(cluster, 0)
    assert len(processes_of(cluster.id)) == 2
    engine.stop()
    here.assert_clean()


def test_of_two_that_are_started_by_strangers_one_gives_way(
    here: Any, cluster: ClusterFolder
) -> None:
    LocalEngine(cluster).start_node(0)
    LocalEngine(cluster).start_node(0)
    wait_for_node(cluster, 0)
    address = cluster.address(0)
    assert address is not None
    init = cluster.init(0)
    both = sorted(process for process in (init, address.process) if process is not None)
    here.wait_until(lambda: processes_of(cluster.id) == both, "the second init ends")
    # A late executor, too, and it says why.
    log = here.folder / "third.log"
    words = [
        sys.executable,
        "-m",
        "headway.controller",
        "executor",
        "--cluster",
        cluster.path,
        "--node",
        "0",
    ]
    third = spawn(words, log, {**here.env, "HEADWAY_RUN_ID": cluster.id, "HEADWAY_NODE": "0"})
    here.wait_until(lambda: not third.alive(), "the third one ends")
    holder = f"already has an executor, process {address.process.pid}; leave that one running"
    assert holder in log.read_text()
    assert cluster.address(0) == address
    assert address.process.alive()


def test_an_executor_that_is_killed_is_started_again_without_an_engine(
    here: Any, cluster: ClusterFolder
) -> None:
    engine = LocalEngine(cluster)
    engine.start_node(0)
    wait_for_node(cluster, 0)
    first, init = cluster.living(0), cluster.init(0)
    assert first is not None and init is not None
    first.kill()
    here.wait_until(lambda: cluster.living(0) not in (None, first), "another executor")
    assert not engine.has_ended(0)
    init.kill()
    here.wait_until(lambda: engine.has_ended(0), "the end of its init is known")
    kept = cluster.living(0)
    engine.start_node(0)
    here.wait_until(lambda: not engine.has_ended(0), "another init")
    assert cluster.living(0) == kept
