"""A driver process, with executors, a monitor and a console played by the test."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from headway.common.config import to_toml
from headway.common.errors import BusyError, DeadlineError, RemoteError
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import private_roots
from headway.common.polling import wait_until
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import (
    Accepted,
    Command,
    GetStatus,
    MonitorBeat,
    NodeBeat,
    Relay,
    Report,
    Seals,
    Status,
)
from headway.common.wire.messages.executor import (
    DriverBeat,
    KillWorker,
    ReadSeals,
    StepMetrics,
    StopRun,
    StoreOpened,
    ToWorker,
    WorkerBeat,
)
from headway.common.wire.messages.health import Verdict, VerdictTaken
from headway.launch.cluster import ClusterFolder
from headway.launch.lease import FileLease, Holder
from headway.testkit.trainer.sessions import one_rank
from headway.trainer.client import replay
from headway.trainer.config import RecoveryConfig
from headway.trainer.control.journal import Journal
from headway.trainer.control.requests import MOST_COMMANDS

LIMIT_S = 90.0
QUIET = dataclasses.replace(  # no node is missed, and so none is started
    one_rank(), recovery=RecoveryConfig(node_silent_s=300.0, node_lost_s=500.0)
)
NOTES = (DriverBeat, ToWorker, KillWorker, ReadSeals, StopRun)
M = TypeVar("M", bound=Message)


class Peer:
    """A client of the driver that keeps what it hears."""

    def __init__(self, place: Place, role: str, accept: tuple[type[Message], ...]) -> None:
        holder = place.holder()
        keys, key = place.cluster.key_of(role), holder.server_key.encode()
        self.client = Client(holder.endpoint, keys=keys, server_key=key, accept=accept)
        self.heard: list[Message] = []

    def wait_for(self, kind: type[M], **fields: object) -> M:
        """The first message of a kind whose fields are as given."""

        def find() -> M | None:
            self.heard += self.client.receive()
            for one in self.heard:
                if isinstance(one, kind) and all(getattr(one, n) == v for n, v in fields.items()):
                    return one
            return None

        assert wait_until(lambda: find() is not None, LIMIT_S), f"{kind.__name__} {fields}"
        found = find()
        assert found is not None
        return found


class Place:
    """A run of one rank and its cluster's folder."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDir.create(folder / "run", run_id=new_run_id())
        self.run.config.write_text(to_toml(QUIET))
        NodePaths(self.run.run_id, 0).create()
        self.cluster = ClusterFolder.create(folder / "cluster", nodes=2)
        self.lease = FileLease(self.run.path)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.clients: list[Client] = []

    def start(self) -> subprocess.Popen[bytes]:
        """Claim the next epoch and start a driver with it."""
        epoch = self.lease.claim(self.lease.look().claimed)
        assert epoch is not None
        return self.start_as(epoch)

    def start_as(self, epoch: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headway.trainer", "driver", "--run", str(self.run.path)]
        command += ["--cluster", str(self.cluster.path), "--node", "0", "--epoch", str(epoch)]
        with (self.run.path / "driver.log").open("ab") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self.processes[-1]

    def holder(self, epoch: int = 0) -> Holder:
        """The published holder, of this epoch or a later one."""

        def find() -> Holder | None:
            found = self.lease.look().holder
            return found if found is not None and found.epoch >= epoch else None

        log = self.run.path / "driver.log"
        assert wait_until(lambda: find() is not None, LIMIT_S), log.read_text()[-3000:]
        found = find()
        assert found is not None
        return found

    def peer(self, role: str, *accept: type[Message]) -> Peer:
        made = Peer(self, role, accept or NOTES)
        self.clients.append(made.client)
        return made

    def beat(self, status: str, **fields: Any) -> NodeBeat:
        """A full beat of node 0 with one worker."""
        worker = WorkerBeat(worker="n0w0", pid=4_194_304, start_ticks=1, status=status, **fields)
        version = 100 * ["idle", "joining", "running"].index(status) + worker.step
        return NodeBeat(
            run_id=self.run.run_id, node=0, pid=1, workers=(worker,), services={}, version=version
        )

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.run.database)) as database:
            return database.execute(sql).fetchall()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with private_roots():
        made = Place(tmp_path)
        yield made
        made.close()


def begin(place: Place) -> Peer:
    """An executor whose worker was given its rank."""
    node = place.peer("executor")
    node.client.notify(place.beat("idle"))
    asked = node.wait_for(ReadSeals)
    assert (asked.run_id, asked.generation) == (place.run.run_id, -1)
    node.client.notify(Seals(run_id=place.run.run_id, node=0, generation=-1, sealed={}))
    assign = node.wait_for(ToWorker).assign
    assert assign is not None and (assign.generation, assign.rank) == (0, 0)
    assert place.rows("SELECT generation FROM generations") == [(0,)], "durable before it is told"
    return node


def run_to_first_step(place: Place, node: Peer) -> None:
    """The worker joins, and completes a step."""
    node.client.notify(place.beat("joining", generation=0, rank=0))
    opened = StoreOpened(generation=0, host="h", port=1, secret="the-secret")
    node.client.notify(Relay(node=0, store=opened))
    assert node.wait_for(ToWorker, store_generation=0).store_secret == "the-secret"
    node.client.notify(place.beat("running", generation=0, rank=0, step=1))
    with place_console(place) as console:
        running = lambda: console.call(GetStatus(), Status).phase == "running"  # noqa: E731
        assert wait_until(running, LIMIT_S)


@contextlib.contextmanager
def place_console(place: Place) -> Iterator[Client]:
    holder = place.holder()
    keys = place.cluster.key_of("console")
    with Client(holder.endpoint, keys=keys, server_key=holder.server_key.encode()) as client:
        yield client


def test_a_driver_publishes_itself_answers_beats_and_begins_a_generation(place: Place) -> None:
    place.start()
    first = place.holder()
    assert wait_until(lambda: place.holder().beat > first.beat + 3, LIMIT_S), "it is renewed"
    node = begin(place)
    beat = node.wait_for(DriverBeat)
    assert (beat.run_id, beat.epoch, beat.host_node) == (place.run.run_id, 1, 0)
    node.wait_for(DriverBeat, known_version=place.beat("idle").version)
    run_to_first_step(place, node)


def test_metrics_are_acknowledged_once_they_are_in_the_journal(place: Place) -> None:
    place.start()
    node = begin(place)
    metrics = StepMetrics(
        generation=0, step=0, loss=1.0, grad_norm=1.0, lr=0.1, tokens=1, duration_s=0.1, unix_s=0.0
    )
    node.client.notify(Report(node=0, sequence=1, oldest=1, metrics=metrics))

    def acknowledged() -> bool:
        node.client.notify(place.beat("idle"))
        node.heard += node.client.receive()
        return any(isinstance(one, DriverBeat) and one.acknowledged == 1 for one in node.heard)

    assert wait_until(acknowledged, LIMIT_S)
    assert place.rows("SELECT step FROM metrics") == [(0,)]


def test_a_successor_fences_a_stopped_driver_and_takes_the_run_as_it_is(place: Place) -> None:
    first = place.start()
    node = begin(place)
    run_to_first_step(place, node)
    os.kill(first.pid, signal.SIGSTOP)
    place.start()
    assert place.holder(epoch=2).epoch == 2
    assert first.wait(LIMIT_S) == -signal.SIGKILL
    successor = place.peer("executor")
    successor.client.notify(place.beat("running", generation=0, rank=0, step=5))
    successor.wait_for(DriverBeat, epoch=2)
    with place_console(place) as console:
        running = lambda: console.call(GetStatus(), Status).phase == "running"  # noqa: E731
        assert wait_until(running, LIMIT_S)
    assert place.rows("SELECT generation FROM generations") == [(0,)], "no new generation"
    epochs = [row[0] for row in place.rows("SELECT epoch FROM events ORDER BY id")]
    assert epochs == sorted(epochs)


def test_a_superseded_driver_leaves_by_itself(place: Place) -> None:
    first = place.start()
    place.holder()
    assert place.lease.claim(1) == 2
    assert first.wait(LIMIT_S) == 0
    late = place.start_as(1)
    assert late.wait(LIMIT_S) == 0, "and cannot come back"


def test_only_the_keys_of_its_roles_are_admitted(place: Place) -> None:
    place.start()
    holder = place.holder()
    for keys in (KeyPair.generate(), place.cluster.key_of("agent")):
        key = holder.server_key.encode()
        with (
            Client(holder.endpoint, keys=keys, server_key=key) as stranger,
            pytest.raises(DeadlineError),
        ):
            stranger.call(GetStatus(), Status, timeout_s=1.0)


def test_a_verdict_is_answered_and_the_newest_monitor_is_passed_on(place: Place) -> None:
    place.start()
    node = begin(place)
    monitor = place.peer("monitor", VerdictTaken)
    here = MonitorBeat(
        run_id=place.run.run_id, node=0, pid=1, endpoint="tcp://127.0.0.1:9", server_key="k"
    )
    monitor.client.notify(here)
    node.wait_for(DriverBeat, monitor_endpoint="tcp://127.0.0.1:9")
    monitor.client.notify(
        Verdict(
            id="log:x#1",
            revision=0,
            kind="nan_loss",
            is_open=True,
            run_id=place.run.run_id,
            node=0,
            action="observe",
            confidence=0.9,
        )
    )
    assert monitor.wait_for(VerdictTaken, id="log:x#1").taken


def test_a_command_is_refused_while_the_journal_is_locked_and_taken_once_later(
    place: Place,
) -> None:
    place.start()
    begin(place)
    command = Command(id="one", operation="pause")
    with place_console(place) as console:
        with contextlib.closing(sqlite3.connect(place.run.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(BusyError, match="cannot record the command"):
                console.call(command, Accepted)
            assert "journal" in console.call(GetStatus(), Status).waiting or wait_until(
                lambda: "journal" in console.call(GetStatus(), Status).waiting, LIMIT_S
            )
            other.execute("ROLLBACK")
        taken = wait_until(lambda: _accepted(console, command) == 1, LIMIT_S)
    assert taken
    assert place.rows("SELECT id FROM commands") == [("one",)]


def _accepted(console: Client, command: Command) -> int | None:
    with contextlib.suppress(BusyError):
        return console.call(command, Accepted).sequence
    return None


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        (
            Command(id="a", operation="rollback", step=0),
            "there is no checkpoint of step 0",
        ),
        (Command(id="b", operation="extend", count=0), "cannot extend the run by 0 steps"),
        (Command(id="c", operation="extend", count=10**12), "cannot extend the run by"),
        (Command(id="d", operation="sample", count=4), "the prompt has no token"),
        (Command(id="e", operation="dance"), "unknown operation 'dance'"),
        (
            Command(id="f", operation="inject", name="worker", fault="kill", rank=0),
            "rank 0 does not train yet",
        ),
    ],
    ids=lambda value: value.operation if isinstance(value, Command) else "",
)
def test_what_the_driver_cannot_do_is_refused_and_not_kept(
    place: Place, command: Command, refusal: str
) -> None:
    place.start()
    begin(place)
    with place_console(place) as console, pytest.raises(RemoteError, match=refusal):
        console.call(command, Accepted)
    assert place.rows("SELECT id FROM commands") == []


def test_a_run_that_has_taken_many_commands_can_still_be_stopped(place: Place) -> None:
    journal = Journal(place.run.database)
    with journal._transaction() as database:
        database.executemany(
            "INSERT INTO commands (id, unix_s, operation, name, value) "
            "VALUES (?, 0, 'set', 'lr', 0.1)",
            [(f"old-{number}",) for number in range(MOST_COMMANDS)],
        )
    journal.close()
    place.start()
    begin(place)
    with place_console(place) as console:
        with pytest.raises(RemoteError, match=r"has taken 8000 commands.*headway fork"):
            console.call(Command(id="a", operation="pause"), Accepted)
        stop = Command(id="b", operation="stop")
        assert console.call(stop, Accepted).sequence == MOST_COMMANDS + 1


def test_a_rollback_that_is_sent_twice_is_recorded_once_and_needs_its_checkpoint(
    place: Place,
) -> None:
    place.start()
    node = begin(place)
    run_to_first_step(place, node)
    command = Command(id="back", operation="rollback", step=1)
    with place_console(place) as console:
        sequences = [console.call(command, Accepted).sequence for _ in range(3)]
        assert sequences == [1, 1, 1]
        events = "SELECT fields FROM events WHERE name = 'rollback_failed'"
        assert wait_until(lambda: len(place.rows(events)) == 1, LIMIT_S)
        assert "no complete checkpoint of step 1" in place.rows(events)[0][0]
        assert console.call(GetStatus(), Status).phase == "running"


def test_the_decisions_can_be_replayed_from_the_journal(place: Place) -> None:
    place.start()
    node = begin(place)
    run_to_first_step(place, node)
    place.start()  # a second driver, which takes the run over
    place.holder(epoch=2)
    successor = place.peer("executor")
    successor.client.notify(place.beat("running", generation=0, rank=0, step=9))
    successor.wait_for(DriverBeat, epoch=2)
    assert wait_until(lambda: {row[0] for row in _inputs(place)} == {1, 2}, LIMIT_S)
    place.close()
    decisions = list(replay(place.run.database))
    assert len(decisions) > 5
    assert [row for row in decisions if row.then != row.now] == []
    rows = place.rows("SELECT event, decided FROM inputs")
    assert not [row for row in rows if b"the-secret" in row[0] or "the-secret" in row[1]]


def _inputs(place: Place) -> list[tuple[Any, ...]]:
    return place.rows("SELECT epoch FROM inputs WHERE decided != ''")


def test_a_holder_that_cannot_be_found_is_no_obstacle(place: Place) -> None:
    assert place.lease.claim(0) == 1
    gone = ProcessId(2**22 - 1, 1)
    place.lease.publish(Holder(1, 0, gone.pid, gone.start_ticks, "tcp://127.0.0.1:1", "k"))
    place.start()
    assert place.holder(epoch=2).process.alive()
