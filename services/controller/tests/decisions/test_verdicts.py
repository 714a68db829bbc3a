"""What the driver does about the monitor's verdicts, and what it answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from headway.common.decide import Action, Log
from headway.common.wire.messages.executor import KillWorker, RestartService
from headway.controller.decisions.events import (
    Answer,
    BeginGeneration,
    DurableFound,
    Finish,
    Memory,
    Remember,
    VerdictReceived,
)
from headway.controller.decisions.failures import FIRST_S
from headway.controller.decisions.verdicts import HANG, HANG_SHOWN_S
from headway.testkit.simulation.by_hand import Hand, events, only, sent
from headway.testkit.simulation.driver import LIMITS


def _verdict(response: str, node: int = 0, **more: Any) -> VerdictReceived:
    return VerdictReceived(
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


def test_a_verdict_that_names_no_node_is_observed() -> None:
    actions = Hand().run().send(_verdict("observe", -1, kind="not_finite"))
    assert _taken(actions) == "observe"


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
    assert set(hand.state.fleet.rank_nodes.values()) == {0, 2}
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


def test_a_crash_by_a_broken_machine_costs_the_node_or_without_a_spare_the_worker() -> None:
    crash = {"kind": "crash", "pid": 100, "generation": 0}
    assert _taken(Hand().run().send(_verdict("replace_node", **crash))) == "gave up node 0"
    alone = Hand(nodes=2).run()
    taken = _taken(alone.send(_verdict("replace_node", **crash)))
    assert taken == "replaced worker n0w0 of rank 0"
    assert alone.state.status_of(0) != "lost"


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


def _cut(hand: Hand, node: int, step: int) -> str:
    """A node is named for a cut of the ranks' network; if it is given up, its ranks step again."""
    verdict = _verdict(
        "replace_node",
        node,
        id=f"{node}#{hand.state.generation}-{step}",
        kind="fabric_cut",
        generation=hand.state.generation,
    )
    actions = hand.send(verdict)
    if "fence" in events(actions):
        hand.silent.add(node)
        hand.leave()
        hand.read(1)
        actions = hand.send(DurableFound(None))
        while not any(isinstance(action, BeginGeneration) for action in actions):
            actions = hand.wait(0.1)
        hand.begin(actions)
        hand.join(step)
        assert hand.state.phase == "running"
        return _taken(hand.send(verdict))
    return _taken(actions)


def test_cuts_that_spares_do_not_end_cost_two_of_them_and_one_after_a_step_is_another() -> None:
    hand = Hand(nodes=7).run()
    assert _cut(hand, 1, step=1) == "gave up node 1"
    assert _cut(hand, 0, step=1) == "gave up node 0"
    assert _cut(hand, 2, step=1) == "observe: 2 nodes were given up for cuts and this one remains"
    hand.join(2)
    assert _cut(hand, 3, step=2) == "gave up node 3"


def test_a_cut_of_an_older_generation_costs_no_node() -> None:
    hand = Hand(nodes=4).run()
    late = _verdict("replace_node", 1, kind="fabric_cut", generation=hand.state.generation)
    assert _cut(hand, 0, step=1) == "gave up node 0"
    assert _taken(hand.send(late)) == "none: generation 0 has ended"
    assert hand.state.status_of(1) != "lost"


SLOW = dataclasses.replace(LIMITS, join_timeout_s=60.0)


def _hang(**more: Any) -> VerdictReceived:
    fields = {"kind": "unexplained_hang", "generation": 0, "silence_s": 2.5, **more}
    return _verdict("restart_ranks", -1, **fields)


def test_a_hang_that_may_pass_is_ended_at_its_limit_and_the_status_says_so_before() -> None:
    hand = Hand(limits=SLOW).run()
    held = _verdict("kill_worker", pid=100, generation=0, silence_s=2.5)
    assert _taken(hand.send(held)) == ""
    assert hand.state.why().startswith("rank 0 hangs while the others wait for it; it is replaced")
    hand.wait(FIRST_S - 3.0)
    assert _taken(hand.send(held)) == "", "no recovery was measured yet"
    hand.wait(0.6)
    assert _taken(hand.send(held)) == "replaced worker n0w0 of rank 0"


def test_a_hang_that_is_not_reported_any_more_is_forgotten() -> None:
    hand = Hand().run()
    hand.send(_hang())
    assert "all of them start again" in hand.state.why()
    hand.wait(HANG_SHOWN_S + 0.1)
    assert hand.state.why() == "" and hand.state.phase == "running"


def test_an_unexplained_hang_starts_all_ranks_again_in_place_and_blames_nobody() -> None:
    hand = Hand(limits=SLOW).run()
    members = hand.state.members.workers
    hand.send(_hang())
    hand.wait(FIRST_S - 2.4)
    actions = hand.send(_hang())
    assert _taken(actions) == "started all ranks again in place"
    assert events(actions) == ["fence"], "no worker is ended for it"
    hand.leave()
    hand.read(1)
    hand.begin(hand.send(DurableFound(None)))
    hand.join(2)
    assert (hand.state.phase, hand.state.generation) == ("running", 1)
    assert hand.state.members.workers == members
    assert hand.state.memory.lost == () and hand.state.memory.losses == ()
    assert _taken(hand.send(_hang())) == "started all ranks again in place", "of the one before"
    assert events(hand.send(_hang(revision=2))) == []


def test_who_does_not_leave_is_killed_and_the_hang_counts_once() -> None:
    hand = Hand().run()
    hand.send(_hang(silence_s=60.0))
    assert hand.state.phase == "leaving"
    actions = hand.wait(LIMITS.leave_timeout_s + 0.2)
    assert "worker_lost" in events(actions) and sent(actions, KillWorker)
    assert [cause for cause, _ in hand.state.memory.causes] == [HANG]


def test_unexplained_hangs_at_the_same_step_end_the_run_with_their_name() -> None:
    hand = Hand(limits=dataclasses.replace(LIMITS, max_crashes=3, hang_act_s=3.0)).run()
    actions: list[Action] = []
    for number in range(3):
        hang = _hang(id=f"h{number}", generation=hand.state.generation, silence_s=5.0)
        assert _taken(hand.send(hang)) == "started all ranks again in place"
        hand.leave()
        hand.read(5)
        actions = hand.send(DurableFound(None))
        while hand.state.phase == "beginning" and not any(
            isinstance(action, BeginGeneration) for action in actions
        ):
            actions = hand.wait(0.1)
        if hand.state.phase == "beginning":
            hand.begin(actions)
            hand.join(6)
    assert only(actions, Finish) == Finish("failed", f"{HANG} (3 times at step 5)")


def test_the_limit_to_act_is_the_median_of_the_runs_recoveries() -> None:
    hand = Hand(limits=SLOW, memory=Memory(recoveries=(0.5, 4.0, 90.0))).run()
    held = _verdict("kill_worker", pid=100, generation=0, silence_s=2.5)
    assert _taken(hand.send(held)) == ""
    hand.wait(1.0)
    assert _taken(hand.send(held)) == ""
    hand.wait(0.6)
    assert _taken(hand.send(held)).startswith("replaced")


def test_over_gloo_the_limit_to_act_is_reached_before_a_collective_ends() -> None:
    memory = Memory(recoveries=(90.0,))
    for is_on_gloo, limit_s in ((True, LIMITS.group_timeout_s / 2), (False, 60.0)):
        hand = Hand(limits=SLOW, memory=memory, is_on_gloo=is_on_gloo).run()
        held = _verdict("kill_worker", pid=100, generation=0, silence_s=limit_s - 0.1)
        assert _taken(hand.send(held)) == ""
        hand.wait(0.2)
        assert _taken(hand.send(held)).startswith("replaced")


def test_the_limit_to_act_is_not_below_the_time_in_which_a_link_may_come_back() -> None:
    """Else a link that flaps for 10 s costs a recovery wherever recoveries take 4 s."""
    hand = Hand(limits=SLOW, memory=Memory(recoveries=(4.0,)), link_wait_s=13.4).run()
    held = _verdict("kill_worker", pid=100, generation=0, silence_s=13.3)
    assert _taken(hand.send(held)) == ""
    hand.wait(0.2)
    assert _taken(hand.send(held)).startswith("replaced")


def test_a_recovery_is_measured_from_its_fence_to_the_step_of_all_ranks() -> None:
    hand = Hand().run()
    hand.send(hand.left(1, "peer"))
    hand.leave()
    hand.wait(2.0)
    hand.read(1)
    hand.begin(hand.send(DurableFound(None)))
    hand.join(2)
    [measured_s] = hand.state.memory.recoveries
    assert 2.0 <= measured_s < 4.0


def test_a_recovery_that_a_pause_lengthens_is_not_measured() -> None:
    hand = Hand().run()
    hand.send(hand.left(1, "peer"))
    hand.leave()
    hand.read(1)
    hand.begin(hand.send(DurableFound(None)))
    hand.join(1, status="restored")
    hand.change(0, 0, paused=True)
    hand.beat(0)
    hand.wait(50.0)
    hand.change(0, 0, paused=False)
    hand.beat(0)
    hand.join(2)
    assert (hand.state.phase, hand.state.memory.recoveries) == ("running", ())
