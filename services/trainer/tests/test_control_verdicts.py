"""What the driver does about the monitor's verdicts, and what it answers."""

from __future__ import annotations

from typing import Any

import pytest
from headway.common.wire.messages.executor import KillWorker, RestartService
from headway.testkit.trainer.by_hand import Hand, events, only, sent
from headway.trainer.control.decisions.events import (
    Action,
    Answer,
    DurableFound,
    Finish,
    Judged,
    Log,
    Remember,
)


def _verdict(response: str, node: int = 0, **more: Any) -> Judged:
    return Judged(
        id=more.pop("id", "v"),
        revision=more.pop("revision", 1),
        kind=more.pop("kind", "silence"),
        response=response,
        node=node,
        **more,
    )


def _taken(actions: list[Action]) -> str:
    return only(actions, Answer).taken


@pytest.mark.parametrize("response", ["kill_worker", "replace_worker"])
def test_a_blamed_member_is_replaced_once_and_answered_as_often_as_the_verdict_comes(
    response: str,
) -> None:
    hand = Hand().run()
    verdict = _verdict(response, pid=100, generation=0)
    actions = hand.send(verdict)
    assert {"worker_lost", "fence"} <= set(events(actions))
    assert _taken(actions) == "replaced worker n0w0 of rank 0"
    assert {t.message.worker for t in sent(hand.wait(0.2), KillWorker)} == {"n0w0"}
    again = hand.send(verdict)
    assert _taken(again) == "replaced worker n0w0 of rank 0"
    assert events(again) == []


@pytest.mark.parametrize(
    ("node", "pid", "generation", "taken"),
    [
        (0, 102, 0, "none: pid 102 on node 0 holds no rank"),  # a standby
        (1, 100, 0, "none: pid 100 on node 1 holds no rank"),
        (0, 100, -1, "replaced worker n0w0 of rank 0"),
        (9, 100, 0, "none: node 9 is not in this run"),
    ],
)
def test_only_a_current_member_is_ended(node: int, pid: int, generation: int, taken: str) -> None:
    hand = Hand().run()
    actions = hand.send(_verdict("kill_worker", node, pid=pid, generation=generation))
    assert _taken(actions) == taken
    assert ("fence" in events(actions)) == taken.startswith("replaced")


def test_a_verdict_about_an_older_generation_changes_nothing() -> None:
    hand = Hand().run()
    hand.send(hand.left(1, "peer"))
    hand.leave()
    hand.read(1)
    hand.begin(hand.send(DurableFound(None)))
    hand.join(2)
    actions = hand.send(_verdict("kill_worker", pid=100, generation=0))
    assert (_taken(actions), events(actions)) == ("none: generation 0 has ended", [])
    assert hand.state.phase == "running"


def test_during_a_recovery_and_in_a_pause_a_worker_is_not_judged_yet() -> None:
    hand = Hand()
    hand.gather()
    verdict = _verdict("kill_worker", pid=100)
    assert _taken(hand.send(verdict)) == ""
    hand.read()
    hand.begin(hand.send(DurableFound(None)))
    hand.join(1)
    hand.change(0, 0, paused=True)
    hand.beat(0)
    assert _taken(hand.send(verdict)) == ""
    hand.change(0, 0, paused=False)
    hand.beat(0)
    assert _taken(hand.send(verdict)) == "replaced worker n0w0 of rank 0"


def test_a_blamed_service_is_restarted_until_a_beat_shows_another_process() -> None:
    hand = Hand().run()
    actions = hand.send(_verdict("restart_service", 1, service="dataloader", detail="no batch"))
    assert _taken(actions) == "restarted dataloader on node 1"
    (order,) = sent(actions, RestartService)
    assert (order.node, order.message.service, order.message.run_id) == (1, "dataloader", "r")
    assert order.message.reason == "silence: no batch"
    assert sent(hand.wait(2.2), RestartService), "a lost order is not sent again"
    hand.beat(1, services={"dataloader": 99, "agent": 8})
    assert not sent(hand.wait(10.0), RestartService)
    assert hand.state.phase == "running"


def test_a_suspected_node_is_given_up_for_a_spare_and_stays_out_until_it_is_restarted() -> None:
    hand = Hand().run()
    actions = hand.send(_verdict("replace_node", 1, kind="xid", detail="Xid 79"))
    assert _taken(actions) == "gave up node 1"
    assert {"node_lost", "fence"} <= set(events(actions))
    [lost] = [one.fields for one in actions if isinstance(one, Log) and one.event == "node_lost"]
    assert lost["is_bad"], "its machine's owner is to know"
    hand.leave()
    assert set(hand.state.rank_nodes.values()) == {0, 2}
    assert sent(hand.wait(0.6), KillWorker)
    assert hand.state.status_of(1) == "lost"
    hand.incarnation[1] += 1
    hand.versions[1] = 0
    assert "node_returned" in events(hand.beat(1))


def test_a_suspected_node_stays_out_under_the_next_driver_too() -> None:
    hand = Hand().run()
    actions = hand.send(_verdict("replace_node", 1, kind="xid"))
    memory = [a.memory for a in actions if isinstance(a, Remember)][-1]
    assert (memory.lost, memory.evicted, memory.losses) == ((1,), (), ((1, 1),))
    successor = Hand(memory=memory, rank_nodes={0: 0, 1: 0, 2: 2, 3: 2})
    successor.beat(1)
    assert successor.state.status_of(1) == "lost"
    successor.incarnation[1] += 1
    successor.versions[1] = 0
    assert "node_returned" in events(successor.beat(1))
    assert successor.state.status_of(1) == "spare"


def test_an_order_to_restart_a_service_names_the_process_that_is_meant() -> None:
    hand = Hand().run()
    hand.beat(1, services={"dataloader": 77})
    (order,) = sent(hand.send(_verdict("restart_service", 1, service="dataloader")), RestartService)
    assert order.message.pid == 77


def test_without_a_spare_a_suspected_node_is_only_observed() -> None:
    hand = Hand(nodes=2).run()
    actions = hand.send(_verdict("replace_node", 1))
    assert (_taken(actions), events(actions)) == ("observe: no spare is ready", [])


def test_a_suspected_spare_carries_no_ranks() -> None:
    hand = Hand().run()
    assert (
        _taken(hand.send(_verdict("replace_node", 2))) == "gave up node 2, which carried no ranks"
    )
    assert hand.state.spare_for(1) is None
    assert hand.state.phase == "running"


def test_a_fault_of_the_users_ends_the_run_only_before_the_first_generation() -> None:
    fresh = Hand()
    verdict = _verdict("stop_run", detail="install numpy")
    actions = fresh.send(verdict)
    assert only(actions, Finish) == Finish("failed", f"{verdict.kind}: install numpy")
    running = Hand().run()
    actions = running.send(_verdict("stop_run", detail="late"))
    assert _taken(actions) == "none: the rank that fails reports it, and the crash brake counts"
    assert running.state.phase == "running"


def test_what_is_not_known_or_only_to_be_observed_is_answered_too() -> None:
    hand = Hand().run()
    assert _taken(hand.send(_verdict("observe"))) == "observe"
    actions = hand.send(_verdict("reboot", revision=2))
    assert _taken(actions) == "none: the response 'reboot' is not known"
