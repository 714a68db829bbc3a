"""What each kind of problem calls for, and which kind a log line shows.

``action`` is for the driver, ``remedy`` for people. What the driver does about each kind and action
is in ``responses``; the rules for log lines are in ``log_rules``.
"""

from __future__ import annotations

from dataclasses import replace

from headway.health.log_rules import LOG_RULES, Advice, LogRule, xid_remedy

ADVICE: dict[str, Advice] = {
    "crash": Advice(
        "replace_worker",
        "replace the worker by a standby; its recorded exit reason and the end of its log say why",
        0.99,
    ),
    "stopped": Advice(
        "kill_worker",
        "send SIGKILL and replace the worker by a standby; a stopped process ignores SIGTERM",
        0.95,
    ),
    "silence": Advice(
        "kill_worker",
        "send SIGKILL and replace the worker by a standby; keep its flight ring",
        0.8,
    ),
    "unexplained_hang": Advice(
        "restart_ranks",
        "all ranks start again together where they are, and nobody is blamed; "
        "the flight records of the run show where each of them stood",
        0.5,
    ),
    "node_silent": Advice(
        "replace_node", "ask the executor over tcp; if it is silent too, use the spare node", 0.7
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
        "belongs to all of these pairs: no spare helps; check its switches and firewalls",
        0.9,
    ),
    "data_stall": Advice(
        "restart_service",
        "restart the {name}; its ranks wait for data and need no replacement",
        0.9,
    ),
    "slow_rank": Advice(
        "observe",
        "see what else runs on this node, and its clocks and temperatures; drain it if this lasts",
        0.7,
    ),
}
"""Kinds that come from processes, beats and connections, not from logs.

A remedy may name ``{pairs}`` of nodes, or by ``{name}`` a service, as ``dataloader of node N``.
"""


def advice_for(kind: str, **names: str) -> Advice:
    """The advice of a kind, whose remedy needs these names."""
    found = ADVICE[kind]
    return replace(found, remedy=found.remedy.format(**names))


def match(line: str) -> tuple[LogRule, str] | None:
    """The first rule that matches a log line and what its pattern captured, or None.

    Several captures are joined by spaces, such as the PCI address of a GPU and the Xid's number.
    """
    lowered = line.lower()
    for rule in LOG_RULES:
        if not any(word in lowered for word in rule.contains):
            continue
        found = rule.pattern.search(line)
        if found is not None:
            return rule, " ".join(filter(None, found.groups()))
    return None


def advice(rule: LogRule, detail: str) -> Advice:
    """The advice for a matched line: it names the device, and for an Xid depends on its number."""
    if not (rule.names_device and detail):
        return rule.advice
    remedy = f"{detail}: {rule.advice.remedy}"
    if rule.name == "gpu_xid":
        device, _, number = detail.rpartition(" ")
        remedy = f"Xid {number} of GPU {device}: {xid_remedy(number)}"
    return Advice(rule.advice.action, remedy, rule.advice.confidence)
