"""A driver process, with executors, a monitor and a console played by the test."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from typing import Any

import msgspec
import pytest
from headway.common.errors import BusyError, DeadlineError, RemoteError
from headway.common.node.process import ProcessId
from headway.common.polling import wait_until
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import (
    Accepted,
    Command,
    GetStatus,
    MonitorBeat,
    Report,
    Status,
)
from headway.common.wire.messages.executor import (
    DriverBeat,
    StepMetrics,
)
from headway.common.wire.messages.health import Verdict, VerdictTaken
from headway.controller.client import replay
from headway.controller.driver.requests import MOST_COMMANDS
from headway.controller.journal.journal import Journal
from headway.launch.lease.base import Holder
from headway.testkit.played.place import (
    LIMIT_S,
    Place,
    begin,
    place_console,
    run_to_first_step,
)


def test_a_driver_publishes_itself_answers_beats_and_begins_a_generation(place: Place) -> None:
    place.start()
    first = place.holder()
    assert wait_until(lambda: place.holder().beat > first.beat + 3, LIMIT_S), "it is renewed"
    node = begin(place)
    beat = node.wait_for(DriverBeat)
    assert (beat.run_id, beat.epoch) == (place.run.run_id, 1)
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


def test_what_nodes_send_that_are_not_of_the_run_is_dropped(place: Place) -> None:
    place.start()
    node = begin(place)
    metrics = StepMetrics(
        generation=0, step=5, loss=1.0, grad_norm=1.0, lr=0.1, tokens=1, duration_s=0.1, unix_s=0.0
    )
    for number in (-1, 1, 2**40):
        stray = place.beat("running", generation=0, rank=0, step=5)
        node.client.notify(msgspec.structs.replace(stray, node=number))
        node.client.notify(Report(node=number, sequence=1, oldest=1, metrics=metrics))
    own = msgspec.structs.replace(metrics, step=0)
    node.client.notify(Report(node=0, sequence=1, oldest=1, metrics=own))
    assert wait_until(lambda: place.rows("SELECT step FROM metrics"), LIMIT_S)
    assert place.rows("SELECT step FROM metrics") == [(0,)], "the same line, one after the other"
    with place_console(place) as console:
        assert console.call(GetStatus(), Status).nodes == {0: "active"}


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
        (
            Command(id="f", operation="inject", name="worker", fault="kill", rank=0),
            "rank 0 is not training yet",
        ),
        (
            Command(id="g", operation="check", node=0),
            "node 0 cannot be checked: this run checks no",
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
            "INSERT INTO commands (id, unix_s, operation, name, value, count, tokens) "
            "VALUES (?, 0, 'set', 'lr', 0.1, 0, '[]')",
            [(f"old-{number}",) for number in range(MOST_COMMANDS)],
        )
    journal.close()
    place.start()
    begin(place)
    with place_console(place) as console:
        with pytest.raises(RemoteError, match=r"limit of 8000 commands.*headway fork"):
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
