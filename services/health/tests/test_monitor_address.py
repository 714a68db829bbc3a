"""One monitor that can be found after any takeover, and that takes beats from the
cluster's agents alone."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import read_line
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.health import AgentBeat, WorkerSignals
from headway.common.wire.server import Server
from headway.health.announce import (
    Address,
    FollowedPeer,
    announce,
    keep_announced,
    read_address,
)
from headway.testkit.played.health_bench import NODE, RUN_ID, Bench, health_bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    with health_bench() as made:
        yield made


def test_the_driver_hears_each_second_where_the_monitor_listens(bench: Bench) -> None:
    bench.driver()
    monitor = bench.monitor()
    bench.wait(lambda: len(bench.monitors) > 1, "two beats of the monitor")
    beat = bench.monitors[-1]
    address = read_address(bench.root / "monitor.json")
    assert address == Address(beat.endpoint, beat.server_key)
    assert (beat.run_id, beat.node, beat.pid) == (RUN_ID, NODE, monitor.pid)
    assert beat.server_key == bench.key_of("monitor").public.decode()
    bench.monitors.clear()
    bench.driver()
    bench.wait(lambda: bool(bench.monitors), "a beat at the next driver")


def test_a_second_monitor_that_comes_and_goes_leaves_the_first_reachable(bench: Bench) -> None:
    bench.driver()
    bench.monitor()
    bench.wait(lambda: bool(bench.monitors), "the first monitor")
    first = read_address(bench.root / "monitor.json")
    second = bench.monitor()
    bench.wait(lambda: read_address(bench.root / "monitor.json") != first, "the second monitor")
    # it serves, so that it takes SIGTERM as a service does
    bench.wait(lambda: any(beat.pid == second.pid for beat in bench.monitors), "its first beat")
    second.terminate()
    assert second.wait(20) == 0
    bench.wait(lambda: read_address(bench.root / "monitor.json") == first, "the first one again")
    bench.monitors.clear()
    bench.wait(lambda: bool(bench.monitors), "its next beat")
    assert bench.monitors[-1].endpoint == first.endpoint if first else False


def test_what_is_announced_others_cannot_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        announce(tmp_path / "monitor.json", Address("tcp://127.0.0.1:1", "key"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "monitor.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [None, "", "{torn", '{"endpoint": "tcp://127.0.0.1:1"}'])
def test_an_address_that_is_lost_is_announced_again(tmp_path: Path, content: str | None) -> None:
    path, mine = tmp_path / "monitor.json", Address("tcp://127.0.0.1:9", "key")
    if content is not None:
        path.write_text(content)
    keep_announced(path, mine)
    assert read_address(path) == mine
    keep_announced(tmp_path / "no folder" / "monitor.json", mine)  # a full disk looks the same


def test_another_monitor_that_listens_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    with Server("tcp://127.0.0.1:0", {}) as other:
        announce(path, Address(other.endpoint, ""))
        keep_announced(path, Address("tcp://127.0.0.1:9", "key"))
        assert read_address(path) == Address(other.endpoint, "")


def record(**changes: object) -> str:
    row = {"epoch": 1, "node": 0, "pid": 1, "start_ticks": 1, "endpoint": "tcp://127.0.0.1:7",
           "server_key": "", "beat": 5, "end": 5, **changes}  # fmt: skip
    return json.dumps(row).ljust(1024)


def test_a_renewed_lease_is_no_new_driver_and_a_later_epoch_is_one(tmp_path: Path) -> None:
    path = tmp_path / "driver.json"
    peer = FollowedPeer(path, 4, KeyPair.generate())
    path.write_text(record(endpoint=""))
    assert not peer.refresh(), "it does not listen yet"
    path.write_text(record(beat=6))
    assert not peer.refresh(), "it was read while it was written"
    path.write_text(record(beat=7, end=7))
    assert peer.refresh()
    for beat in range(8, 20):
        path.write_text(record(beat=beat, end=beat))
        assert not peer.refresh()
    path.write_text(record(epoch=2))
    assert peer.refresh(), "the same port, but another driver"
    peer.close()


def gone(rank: int, pid: int) -> WorkerSignals:
    return WorkerSignals(
        rank=rank, pid=pid, start_ticks=1, state="gone", generation=0, head=1, step=5, step_s=0.1,
        num_steps=5, median_step_s=0.1, age_s=0.0,
    )  # fmt: skip


def forged(pid: int) -> AgentBeat:
    """A later start than any agent's, so the monitor would take it for the newest of its node."""
    return AgentBeat(
        run_id=RUN_ID, node=NODE, pid=1, start_ticks=2**62, sequence=1,
        workers=(gone(0, pid),),
    )  # fmt: skip


def test_without_an_agents_key_nobody_can_have_a_rank_killed(bench: Bench) -> None:
    """The same beat is taken from the holder of the key, so it is the key that
    keeps the others out."""
    bench.driver(), bench.monitor(), bench.agent()
    with bench.worker(0) as child:
        assert read_line(child) == "up"
        bench.wait_for_ranks(1)
        address = read_address(bench.root / "monitor.json")
        assert address is not None
        server_key = address.server_key.encode()
        strangers = [
            Client(address.endpoint),
            Client(address.endpoint, server_key=server_key),
            Client(address.endpoint, server_key=server_key, keys=KeyPair.generate()),
            Client(address.endpoint, server_key=server_key, keys=bench.key_of("monitor")),
        ]
        for stranger in strangers:
            stranger.notify(forged(child.pid))
        bench.wait_for_beats(30)  # three seconds of the agent's own beats
        assert bench.verdicts == [] and bench.describe()["num_ranks"] == 1
        with Client(address.endpoint, server_key=server_key, keys=bench.key_of("agent")) as one:
            one.notify(forged(child.pid))
            bench.wait(lambda: bool(bench.verdicts), "the verdict that the key brings about")
        assert [(kind, rank) for kind, rank, _ in bench.kinds()][:1] == [("crash", 0)]
        for stranger in strangers:
            stranger.close()


def test_both_daemons_make_the_keys_that_are_missing_and_keep_them_secret(bench: Bench) -> None:
    bench.monitor(), bench.agent()
    bench.wait_for_ranks(0)
    bench.wait(lambda: bench.describe()["num_nodes"] == 1, "a beat of the agent")
    for role in ("monitor", "agent"):
        assert stat.S_IMODE((bench.keys / f"{role}.key").stat().st_mode) == 0o600
    assert bench.key_of("monitor") != bench.key_of("agent")
