"""A driver of a run over machines: what an evicted node can still do."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import private_roots
from headway.common.plan.topology import Chain, Topology
from headway.common.polling import wait_until
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import Accepted, Command, GetStatus, NodeBeat, Status
from headway.common.wire.messages.executor import DriverBeat
from headway.launch.engines.choose import facts_of
from headway.launch.engines.slurm.config import SlurmRun
from headway.launch.engines.ssh.config import Host, HostsRun
from headway.launch.lease.base import Holder
from headway.testkit.played.place import LIMIT_S, NOTES, QUIET, JoinedPlace, place_console
from headway.trainer.config import LaunchConfig, ParallelConfig

SHORT_S = 3.0
"""Longer than a handshake takes; a key that is not admitted gets no answer at all."""


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[JoinedPlace]:
    with private_roots(), contextlib.closing(JoinedPlace(tmp_path)) as made:
        yield made


def _is_answered(joined: JoinedPlace, keys: KeyPair, holder: Holder, limit_s: float) -> bool:
    """Whether a new connection of node 1's executor gets an answer to its beats."""
    key = holder.server_key.encode()
    beat = NodeBeat(run_id=joined.run.run_id, node=1, pid=1, workers=(), services={}, version=1)
    with Client(holder.endpoint, keys=keys, server_key=key, accept=NOTES) as client:

        def answer() -> bool:
            client.notify(beat)
            return any(isinstance(one, DriverBeat) for one in client.receive())

        return wait_until(answer, limit_s, every_s=0.1)


def test_the_key_of_an_evicted_node_opens_no_connection_any_more(joined: JoinedPlace) -> None:
    joined.start()
    holder, keys = joined.holder(), KeyPair.generate()
    joined.join(1, keys, holder)
    assert _is_answered(joined, keys, holder, LIMIT_S)
    with place_console(joined) as console:
        console.call(Command(id="out", operation="evict", node=1), Accepted)
    assert not _is_answered(joined, keys, holder, SHORT_S)
    members = "SELECT value FROM facts WHERE key = 'members'"
    assert wait_until(lambda: keys.public.decode() not in joined.rows(members)[0][0], LIMIT_S)


def test_the_journal_keeps_which_network_ranks_are_placed_on(joined: JoinedPlace) -> None:
    """So that the next driver does not move them."""
    switches = (("spine", "a"), ("spine", "b"))
    slurm = SlurmRun(joined.bundle.shared, "/python", job="7", hosts=("x", "y"), switches=switches)
    dataclasses.replace(joined.bundle, engine=facts_of(slurm)).save(joined.run.bundle)
    joined.start()
    joined.holder()  # it leads
    network = "SELECT value FROM facts WHERE key = 'network'"
    assert wait_until(lambda: joined.rows(network) == [(Topology(switches).digest,)], LIMIT_S)


@pytest.mark.parametrize(
    ("switches", "counts"),
    [((("a",), ("b",)), (1, 1)), ((("a",), ("a",)), (0, 1)), ((), (0, 0))],
    ids=["apart", "together", "unknown"],
)
def test_the_status_counts_the_replicas_below_different_leaf_switches(
    tmp_path: Path, switches: tuple[Chain, ...], counts: tuple[int, int]
) -> None:
    launch = LaunchConfig(nodes=2, ranks_per_node=1)
    config = dataclasses.replace(QUIET, parallel=ParallelConfig(dp=2), launch=launch)
    with private_roots(), contextlib.closing(JoinedPlace(tmp_path, config)) as joined:
        hosts = HostsRun(joined.bundle.shared, (Host("x"), Host("y")), switches=switches)
        dataclasses.replace(joined.bundle, engine=facts_of(hosts)).save(joined.run.bundle)
        joined.start()
        with place_console(joined) as console:
            status = console.call(GetStatus(), Status)
    assert (status.dp_crossing, status.dp_pairs) == counts
