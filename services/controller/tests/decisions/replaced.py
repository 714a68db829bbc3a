"""A run whose machines are lost for good, driven by hand in steps of a second."""

from __future__ import annotations

import dataclasses

from headway.common.decide import Action, Done, Failed, Log
from headway.controller.decisions.events import (
    BeginGeneration,
    DurableFound,
    ReplaceMachine,
    RestartNode,
    Tick,
)
from headway.launch.engine import Replaces
from headway.testkit.simulation.by_hand import Hand, only
from headway.testkit.simulation.driver import LIMITS
from headway.trainer.config import RecoveryConfig

AFTER_S = LIMITS.replace_after_s
WAIT_S = 200.0
WAITING = dataclasses.replace(LIMITS, wait_for_node_s=WAIT_S)
LOST_WITHIN_S = LIMITS.node_lost_s + LIMITS.node_silent_s + 2.0
QUEUED = "node 1 is waiting for a machine: job 8, Priority"


def hand_with(
    nodes: int = 3, replaces: Replaces = "lost", limits: RecoveryConfig = LIMITS, **more: object
) -> Hand:
    return Hand(nodes=nodes, limits=limits, replaces=replaces, unix_s=1e9, **more)


def pass_time(hand: Hand, seconds: float, error: str = "it cannot be reached") -> list[Action]:
    """Time passes in whole seconds; the ranks recover, and no silent node can be started."""
    actions: list[Action] = []
    for _ in range(round(seconds)):
        hand.now += 1.0
        new = hand.send(Tick())
        for node in hand.workers:
            if node not in hand.silent:
                new += hand.pulse(node)
        for action in [one for one in new if isinstance(one, RestartNode)]:
            new += hand.send(Failed(action, error, is_on_order=error == QUEUED))
        actions += new + recover(hand)
    return actions


def recover(hand: Hand) -> list[Action]:
    """Every rank that is on a node which reports does what it is asked for."""
    actions: list[Action] = []
    if hand.state.phase == "leaving":
        actions += hand.leave()
    if hand.state.phase == "reading":
        actions += hand.read(5)
    if hand.state.phase == "choosing":
        actions += hand.send(DurableFound(None))
    while hand.state.phase == "beginning":
        begun = [one for one in actions if isinstance(one, BeginGeneration)]
        actions += hand.send(Done(begun[-1])) if begun else hand.wait(0.1)
    if hand.state.phase == "joining":
        actions += hand.join(6)
    return actions


def orders_in(actions: list[Action]) -> list[ReplaceMachine]:
    return [action for action in actions if isinstance(action, ReplaceMachine)]


def lose(hand: Hand, *nodes: int) -> list[Action]:
    """The machines are lost; returns what is done until they are given up, or would be."""
    hand.silent |= set(nodes)
    actions = pass_time(hand, LIMITS.node_silent_s + 1.0)
    if any(hand.state.is_active(node) for node in nodes):
        actions += hand.send(hand.left(0, "peer"))
    return actions + pass_time(hand, LOST_WITHIN_S)


def order_for(hand: Hand, node: int = 1) -> ReplaceMachine:
    lose(hand, node)
    return only(pass_time(hand, AFTER_S), ReplaceMachine)


def boot(hand: Hand, node: int) -> list[Action]:
    """Its executor is started on a new machine."""
    hand.silent.discard(node)
    hand.incarnation[node] += 1
    hand.versions[node] = 0
    hand.workers[node] = [hand.idle(node, index) for index in (7, 8, 9)]
    return hand.beat(node)


def logged(actions: list[Action], event: str) -> list[dict[str, object]]:
    return [one.fields for one in actions if isinstance(one, Log) and one.event == event]
