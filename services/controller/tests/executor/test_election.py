"""Who starts a driver, and when: the lease as one executor sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from headway.common.node.process import ProcessId
from headway.controller.executor import node_events as on
from headway.controller.executor.election import (
    HANDICAP_S,
    MAX_STARTS,
    START_GRACE_S,
    LeaseCandidate,
)
from headway.launch.lease.base import Holder, LeaseView
from headway.testkit.simulation.lone_node import LoneNode

SILENT_S = 2.0


def held(epoch: int = 1, node: int = 0, beat: int = 0, claimed: int | None = None) -> LeaseView:
    holder = Holder(epoch, node, 9, 9, "tcp://127.0.0.1:1", "key", beat)
    return LeaseView(epoch if claimed is None else claimed, holder)


@dataclass
class Observer:
    """One executor's ``LeaseCandidate``, asked four times a second."""

    leading: LeaseCandidate
    now: float = 0.0
    own: str = ""
    failures: int = 0
    claims: list[int] = field(default_factory=list)
    leaves: int = 0

    def watch(self, seconds: float, view: Any, heard: bool = False) -> None:
        until = self.now + seconds
        while self.now < until and not self.claims:
            self.now += 0.25
            self.leading.see(view(self.now) if callable(view) else view, self.now)
            standing = self.leading.next(
                self.now,
                own=self.own,
                failures=self.failures,
                silent_s=0.0 if heard else self.now,
                is_readable=True,
            )
            self.claims += [standing.claim.after] if standing.claim else []
            self.leaves += standing.leave


def observer(node: int = 3, **options: Any) -> Observer:
    return Observer(LeaseCandidate(node, SILENT_S, **options))


def renewed(now: float) -> LeaseView:
    return held(beat=int(now * 4))


def test_a_lease_that_is_renewed_is_left_alone() -> None:
    seen = observer()
    seen.watch(600.0, renewed)
    assert seen.claims == []


def test_a_lease_that_is_not_renewed_is_claimed_soon_and_by_each_node_at_another_time() -> None:
    times = set()
    for node in range(40):
        seen = observer(node)
        seen.watch(10.0, renewed)
        seen.watch(10.0, held(beat=40))
        assert seen.claims == [1] and SILENT_S <= seen.now - 10.0 <= SILENT_S + 1.5
        times.add(seen.leading._limit_s(held()))
    assert len(times) == 40


def test_a_driver_that_is_heard_is_left_alone_for_longer() -> None:
    seen = observer()
    seen.watch(8.0, held(), heard=True)
    assert seen.claims == []
    seen.watch(30.0, held(), heard=True)
    assert seen.claims == [1], "it answers, but it makes no progress"


def test_a_claimant_has_time_to_start() -> None:
    seen = observer()
    seen.watch(START_GRACE_S, held(epoch=1, claimed=2))
    assert seen.claims == []
    seen.watch(10.0, held(epoch=1, claimed=2))
    assert seen.claims == [2]


def test_the_lease_of_an_earlier_run_is_left_to_the_first_node_of_a_fresh_one() -> None:
    first, other = observer(0, is_fresh=True), observer(1, is_fresh=True)
    first.watch(1.0, held(epoch=7))
    assert first.claims == [7] and first.now == 0.25
    other.watch(START_GRACE_S, held(epoch=7))
    assert other.claims == []


def test_a_view_that_cannot_be_had_leads_to_no_claim() -> None:
    leading = LeaseCandidate(0, SILENT_S)
    for now in range(100):
        standing = leading.next(
            float(now), own="", failures=0, silent_s=float(now), is_readable=now % 2 == 0
        )
        assert standing.claim is None


def test_the_end_of_the_own_driver_is_answered_at_once() -> None:
    seen = observer(epoch=4)
    seen.own = "down"
    seen.watch(0.25, held(epoch=4, node=3))
    assert seen.claims == [4]


def test_the_lease_of_an_own_driver_that_hangs_is_claimed_too() -> None:
    """The claim comes first: where it cannot be made, the driver there is is better than none."""
    seen = observer(epoch=1)
    seen.own = "up"
    seen.watch(5.0, held(node=3))
    assert seen.claims == [1]


def test_a_look_that_began_before_the_own_driver_resigned_is_not_trusted() -> None:
    seen = observer(epoch=1, node=0)
    seen.own = "up"
    seen.watch(1.0, renewed)
    seen.own = "down"
    seen.watch(0.25, held(epoch=1))
    assert seen.claims == [] and seen.leading.wants_reads
    seen.watch(HANDICAP_S, resigned)
    assert seen.claims == [] and seen.leaves == 1


def test_the_own_driver_that_was_killed_is_followed_after_two_looks() -> None:
    seen = observer(epoch=1, node=0)
    seen.own = "up"
    seen.watch(1.0, renewed)
    seen.own = "down"
    seen.watch(0.5, held(epoch=1))
    assert seen.claims == [1]
    alone = observer(epoch=1, node=0, is_alone=True)
    alone.own = "up"
    alone.watch(1.0, renewed)
    alone.own = "down"
    alone.watch(0.25, held(epoch=1))
    assert alone.claims == [1], "there is nobody to give the lease up for"


@pytest.mark.parametrize("own", ["up", "down"])
def test_a_node_that_was_superseded_leaves_and_claims_nothing(own: str) -> None:
    seen = observer(epoch=1)
    seen.own = own
    seen.watch(0.25, held(epoch=2, node=0))
    assert seen.leaves == 1 and seen.claims == [] and seen.leading.epoch == 0


def test_who_was_killed_by_a_claimant_leaves_the_lease_to_it() -> None:
    seen = observer(epoch=1)
    seen.own = "down"
    seen.watch(0.5, held(epoch=1, node=3, claimed=2))
    assert seen.leaves == 1 and seen.claims == []


def test_a_node_whose_driver_cannot_start_lets_another_one_try() -> None:
    seen = observer(epoch=5)
    seen.own, seen.failures = "down", MAX_STARTS
    seen.watch(0.25, held(epoch=1, claimed=5))
    assert seen.leaves == 1 and seen.claims == []
    seen.own, seen.failures = "", 0
    seen.watch(START_GRACE_S + HANDICAP_S, held(epoch=1, claimed=5))
    assert seen.claims == []
    alone = observer(epoch=5, is_alone=True)
    alone.own, alone.failures = "down", MAX_STARTS
    alone.watch(0.25, held(epoch=1, claimed=5))
    assert alone.claims == [5]


# ---- through the guardian ---------------------------------------------------------------------
def drivers(node: LoneNode) -> list[ProcessId]:
    return [p.id for p in node.processes.values() if p.name == "driver" and p.state != "Z"]


def leader() -> LoneNode:
    """A node that has taken over from a driver that is silent."""
    node = LoneNode()
    node.run(15.0)
    node.driver_beats = False
    node.run(5.0)
    assert node.claims == [1] and len(drivers(node)) == 1
    node.lease.view = held(epoch=2, node=1)
    return node


def test_a_silent_driver_is_followed_by_one_with_the_epoch_that_was_claimed() -> None:
    node = leader()
    started = [a for _, a in node.actions if isinstance(a, on.StartService) and a.name == "driver"]
    assert [a.epoch for a in started] == [2]
    assert {"driver", "monitor"} <= node.guardian.services.processes().keys()


def test_a_driver_that_dies_is_followed_by_another_epoch_and_the_monitor_stays() -> None:
    node = leader()
    (driver,), monitor = drivers(node), node.guardian.services.process("monitor")
    node.processes[driver].state = "Z"
    node.run(1.5)
    assert node.claims == [1, 2] and drivers(node) not in ([], [driver])
    assert node.guardian.services.process("monitor") == monitor


def test_a_superseded_node_ends_its_driver_and_its_monitor_even_if_they_hang() -> None:
    node = leader()
    for process in node.processes.values():
        process.is_hung = process.name in ("driver", "monitor")
    node.driver_beats, node.lease.view = True, held(epoch=3, node=0, claimed=3)
    node.run(1.0)
    assert drivers(node), "it has had SIGTERM, which it does not take"
    node.run(2.5)
    assert not drivers(node) and node.is_whole
    assert node.memory.leading == 0


def test_a_restarted_executor_keeps_the_driver_of_its_predecessor() -> None:
    node = leader()
    before = drivers(node)
    node.restart_executor()
    node.run(1.0)
    assert drivers(node) == before and node.claims == [1]
    node.processes[before[0]].state = "Z"
    node.restart_executor()
    node.run(2.0)
    assert node.claims == [1, 2] and len(drivers(node)) == 1


def test_a_claim_that_fails_is_tried_again_with_a_sentence() -> None:
    node = LoneNode()
    node.run(15.0)
    node.driver_beats, node.claim_fails = False, True
    node.run(20.0)
    assert 3 <= len(node.claims) <= 10
    assert "lease cannot be claimed: read-only" in node.guardian.trouble()


def resigned(_now: float) -> LeaseView:
    return LeaseView(1, Holder(1, 0, 9, 9, "tcp://127.0.0.1:1", "key", 5, has_resigned=True))


def test_a_lease_that_was_given_up_is_claimed_at_once_by_others() -> None:
    seen = observer()
    seen.watch(30.0, resigned)
    assert seen.claims == [1] and seen.now <= SILENT_S


def test_the_node_whose_driver_has_resigned_waits_longest() -> None:
    seen = observer(node=0, is_fresh=True)
    seen.watch(30.0, LeaseView())
    assert seen.claims == [0]
    seen.claims.clear()
    seen.leading.claimed(1)
    seen.own = "down"
    seen.watch(30.0, resigned)
    assert seen.claims == [1] and seen.leaves == 1 and seen.now >= HANDICAP_S


def test_an_epoch_that_was_seen_is_not_claimed_again_when_the_files_of_the_lease_are_lost() -> None:
    seen = observer()
    seen.watch(5.0, lambda now: held(epoch=7, beat=int(now * 4)))
    seen.watch(600.0, LeaseView())
    assert seen.claims == [7]
