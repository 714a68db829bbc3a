"""What each kind of problem calls for.

``action`` is for the driver, ``remedy`` for people. What the driver does about each kind and action
is in ``responses``; the rules for lines and counters are in ``rulebook``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from headway.common.wire.messages.health import VerdictAction
from headway.health.rulebook import Rule


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice for a kind of problem."""

    action: VerdictAction
    remedy: str
    confidence: float
    alternatives: tuple[tuple[str, float], ...] = ()
    """What it may be instead, with its probability."""


ADVICE: dict[str, Advice] = {
    "crash": Advice(
        "replace_worker",
        "read its last words and the end of its log for the reason; a standby takes its place",
        0.99,
    ),
    "stopped": Advice(
        "kill_worker",
        "find out who stopped it; it is ended with SIGKILL, and a standby takes its place",
        0.95,
    ),
    "silence": Advice(
        "kill_worker",
        "check the code where it hangs; it is killed, and a standby takes over",
        0.8,
        (("it waits for something that no table shows", 0.2),),
    ),
    "unexplained_hang": Advice(
        "restart_ranks",
        "all ranks restart in place, and none is replaced; "
        "the flight records of the run show where each of them stood",
        0.5,
    ),
    "node_silent": Advice(
        "replace_node",
        "look at its power and network; a spare takes over unless its executor still answers",
        0.7,
        (("only its agent or its connection to the monitor has failed", 0.3),),
    ),
    "fabric_cut": Advice(
        "replace_node",
        "nodes {pairs} do not reach each other in the ranks' network (launch.fabric): check its "
        "cables, switch and firewall",
        0.9,
    ),
    "fabric_split": Advice(
        "observe",
        "nodes {pairs} do not reach each other in the ranks' network (launch.fabric), and no node "
        "belongs to all of these pairs: replacing a node does not help; check its switches and "
        "firewalls",
        0.9,
    ),
    "data_stall": Advice(
        "restart_service",
        "check the disk it reads from; the {name} is restarted, and no rank is replaced",
        0.9,
    ),
    "slow_rank": Advice(
        "observe",
        "see what else runs on this node, and its clocks and temperatures; drain it if this lasts",
        0.9,
    ),
    "link_flapping": Advice(
        "replace_node",
        "drain the node; check the transceiver and the cable of this link",
        0.8,
    ),
    "common_fault": Advice(
        "observe",
        "look at what these nodes share, such as a switch, a file server or power: none of them is "
        "at fault by itself, and replacing a node does not help",
        0.6,
        (("several nodes have failed by themselves", 0.2),),
    ),
}
"""Kinds that come from processes, beats and connections, not from findings.

A remedy may name ``{pairs}`` of nodes, or by ``{name}`` a service, as ``dataloader of node N``.
"""


RAISED: Final = Advice(
    "observe",
    "read the traceback in the rank's log: the process lives and joins the next generation",
    0.99,
)
"""Advice on a rank that left its generation by an error, whose text may replace the remedy."""


def advice_for(kind: str, **names: str) -> Advice:
    """The advice of a kind, whose remedy needs these names."""
    found = ADVICE[kind]
    return replace(found, remedy=found.remedy.format(**names))


def advice(rule: Rule, name: str, detail: str = "", *, is_repeated: bool = False) -> Advice:
    """The advice for a finding, with its subject and what else its line has captured.

    ``is_repeated``: this subject repeats it, and no other does.
    """
    remedy, action, confidence = rule.remedy, rule.action, rule.confidence
    if is_repeated and (repeat := rule.repeat) is not None:
        remedy = f"{remedy}; {repeat.remedy}"
        action = ADVICE[repeat.kind].action if repeat.kind else action
        confidence = repeat.confidence or confidence
    subject = " ".join(filter(None, (name, detail)))
    if rule.names_device and name:
        remedy = f"{'GPU ' if rule.subject == 'gpu' else ''}{subject}: {remedy}"
    return Advice(action, remedy, confidence)
