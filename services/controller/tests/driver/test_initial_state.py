"""What a driver begins with: the journal for itself, and ranks that ran elsewhere before."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Literal

import pytest
from headway.common.plan.topology import Topology
from headway.common.wire.messages.worker import Steer
from headway.controller.driver.initial_state import NETWORK, begin, is_of_plan
from headway.controller.journal.journal import Journal
from headway.health.config import QUICK_CHECKS, HealthConfig
from headway.launch.lease.base import SupersededError
from headway.trainer.config import LaunchConfig, ParallelConfig, RunConfig, TrainConfig

PLANNED = {0: 0, 1: 0, 2: 1, 3: 1}


@pytest.mark.parametrize(
    ("before", "is_kept"),
    [
        ({0: 0, 1: 0, 2: 1, 3: 1}, True),
        ({0: 0, 1: 0, 2: 2, 3: 2}, True),  # a spare took over
        ({0: 0, 1: 0, 2: 0, 3: 0}, False),  # as with another launch.ranks_per_node
        ({0: 0, 1: 1, 2: 0, 3: 1}, False),
        ({0: 0, 1: 0}, False),
        ({}, False),  # of a fork
    ],
)
def test_a_placement_is_kept_while_the_same_ranks_share_a_node(
    before: dict[int, int], is_kept: bool
) -> None:
    assert is_of_plan(before, PLANNED) == is_kept


@pytest.mark.parametrize(("is_joined", "nodes"), [(False, 3), (True, 8)])
def test_other_nodes_of_a_larger_cluster_are_not_the_runs(
    tmp_path: Path, is_joined: bool, nodes: int
) -> None:
    """Their idle executors were ended as hung, and listed as lost."""
    launch = LaunchConfig(nodes=2, ranks_per_node=1, spares=1)
    config = RunConfig(parallel=ParallelConfig(dp=2), launch=launch)
    journal = Journal(tmp_path / "run.sqlite", epoch=1)
    journal.begin_generation(0, {0: 0, 1: 7})
    start = begin(config, "0123abcd", 8, 1, journal, is_joined=is_joined)
    journal.close()
    assert start.nodes == nodes
    assert start.rank_nodes == ({0: 0, 1: 7} if is_joined else {0: 0, 1: 1})


def test_ranks_begin_where_the_network_is_best_and_stay_there_when_a_driver_takes_over(
    tmp_path: Path,
) -> None:
    """Nodes 0 and 2 share a leaf, 1 and 3, and the spare shares the first one."""
    journal = Journal(tmp_path / "run.sqlite", epoch=1)
    launch = LaunchConfig(nodes=4, ranks_per_node=1, spares=1)
    train = TrainConfig(device="cpu", dtype="fp32")
    config = RunConfig(parallel=ParallelConfig(pp=2, dp=2), launch=launch, train=train)
    topology = Topology((("a",), ("b",), ("a",), ("b",), ("a",)))

    def ranks(epoch: int, topology: Topology) -> dict[int, int]:
        return begin(
            config, "0123abcd", 5, epoch, journal, is_joined=True, topology=topology
        ).rank_nodes

    assert ranks(1, topology) == {0: 0, 1: 2, 2: 1, 3: 3}
    journal.set_facts(**{NETWORK: topology.digest})
    after_a_loss = {0: 0, 1: 4, 2: 1, 3: 3}
    journal.begin_generation(1, after_a_loss)
    assert ranks(1, topology) == after_a_loss, "a spare keeps the ranks that it took over"
    other = Topology((("a",), ("a",), ("b",), ("b",), ("b",)))
    assert ranks(1, other) == {0: 0, 1: 1, 2: 2, 3: 3}, "resumed on other machines"
    journal.close()


@pytest.mark.parametrize(("device", "is_on_gloo"), [("cpu", True), ("gpu", False)])
def test_the_driver_knows_whether_collectives_end_by_themselves(
    tmp_path: Path, device: Literal["cpu", "gpu"], is_on_gloo: bool
) -> None:
    journal = Journal(tmp_path / "run.sqlite", epoch=1)
    config = RunConfig(train=TrainConfig(device=device))
    assert begin(config, "0123abcd", 1, 1, journal).is_on_gloo == is_on_gloo
    journal.close()


@pytest.mark.parametrize(
    ("device", "profile", "waits"),
    [("gpu", "ib", True), ("gpu", "efa", True), ("gpu", "none", False), ("cpu", "ib", False)],
)
def test_the_driver_knows_how_long_a_link_may_be_away(
    tmp_path: Path,
    device: Literal["cpu", "gpu"],
    profile: Literal["none", "ib", "efa"],
    waits: bool,
) -> None:
    """Over gloo no adapter resends, and a collective ends sooner."""
    journal = Journal(tmp_path / "run.sqlite", epoch=1)
    config = RunConfig(
        train=TrainConfig(device=device), parallel=ParallelConfig(nccl_profile=profile)
    )
    start = begin(config, "0123abcd", 1, 1, journal)
    assert (start.link_wait_s > config.parallel.flap_s) == waits
    assert waits or start.link_wait_s == 0.0
    journal.close()


def test_nothing_is_added_to_what_a_new_driver_has_read(tmp_path: Path) -> None:
    """A former driver may have been frozen until then."""
    config = RunConfig()
    old, new = Journal(tmp_path / "run.sqlite", epoch=3), Journal(tmp_path / "run.sqlite", epoch=4)
    old.add_command("a", Steer(sequence=0, operation="pause"))
    start = begin(config, "0123abcd", config.launch.nodes, 4, new)
    assert [steer.operation for steer in start.commands] == ["pause"]
    with pytest.raises(SupersededError, match="belongs to epoch 4"):
        old.add_command("b", Steer(sequence=0, operation="stop"))
    with pytest.raises(SupersededError):
        begin(config, "0123abcd", config.launch.nodes, 3, old)
    old.close()
    new.close()


def test_what_a_former_driver_adds_in_the_first_seconds_is_taken_over(tmp_path: Path) -> None:
    """It holds the journal for longer than one attempt to write lasts."""
    old, new = Journal(tmp_path / "run.sqlite", epoch=3), Journal(tmp_path / "run.sqlite", epoch=4)
    new._db.execute("PRAGMA busy_timeout=0")
    at_work = threading.Event()

    def add_slowly() -> None:
        with old._transaction() as database:
            at_work.set()
            time.sleep(0.2)
            database.execute(
                "INSERT INTO commands (id, unix_s, operation, name, value, count, tokens) "
                "VALUES ('a', 0, 'pause', '', 0, 0, '[]')"
            )

    thread = threading.Thread(target=add_slowly)
    thread.start()
    assert at_work.wait(30.0)
    start = begin(RunConfig(), "0123abcd", 2, 4, new)
    assert [steer.operation for steer in start.commands] == ["pause"]
    with pytest.raises(SupersededError):
        old.add_command("b", Steer(sequence=0, operation="stop"))
    thread.join()
    old.close()
    new.close()


def test_a_driver_begins_while_its_journal_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.controller.journal.journal.LEAD_S", 0.2)
    old, new = Journal(tmp_path / "run.sqlite", epoch=3), Journal(tmp_path / "run.sqlite", epoch=4)
    old._db.execute("BEGIN IMMEDIATE")
    new._db.execute("PRAGMA busy_timeout=0")
    config = RunConfig()
    assert begin(config, "0123abcd", config.launch.nodes, 4, new).epoch == 4
    old.close()
    new.close()


@pytest.mark.parametrize(
    ("check_nodes", "is_joined", "is_on"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("always", False, True),
        ("never", True, False),
    ],
)
def test_machines_are_checked_as_the_configuration_says_and_for_as_long_as_their_checks_may_take(
    tmp_path: Path, check_nodes: str, is_joined: bool, is_on: bool
) -> None:
    health = HealthConfig(check_nodes=check_nodes, check_deadline_s=100.0)
    journal = Journal(tmp_path / "run.sqlite", epoch=1)
    start = begin(RunConfig(health=health), "r", 1, 1, journal, is_joined=is_joined)
    assert start.checks_nodes is is_on
    assert start.check_limit_s > health.quick_suite_s > len(QUICK_CHECKS) * 100.0
    journal.close()
