"""Faults of machines, their networks and their processes, struck on a run that trains on them."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil
from headway.ckpt_store.client import newest
from headway.common.node.janitor import role_of
from headway.common.polling import wait_until
from headway.common.wire.messages.driver import Status
from headway.console.run import Run
from headway.health.client import verdicts_of
from headway.testkit.bed.node import Node
from headway.testkit.journal import query
from headway.testkit.machines import Machines

from benchmarks.drill.catalogue import Fault, Strike
from benchmarks.drill.look import home_of, node_of, pids_of

STEP_LIMIT_S = 180.0
RETURN_LIMIT_S = 120.0
DELAY_MS, LIMIT_MBIT = 100.0, 5.0
NUMBERS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}


def _nothing() -> None:
    """Most faults need no repair."""


@dataclass
class Hit:
    """What a fault has done to a machine, and what follows."""

    node: Node
    begins_anew: bool = False
    """Whether a new generation must follow."""
    undo: Callable[[], None] = _nothing
    """Repairs the damage."""
    is_named: Callable[[], bool] | None = None
    """Whether a verdict names the two machines that do not reach each other."""
    leads: bool = False
    """Whether the machine that lost the run still has its driver, which may write."""
    facts: dict[str, Any] = field(default_factory=dict)
    """More for the row of the report."""


class MachineFaults:
    """For one run; ``seed`` decides which machines are hit."""

    def __init__(self, machines: Machines, name: str, seed: int) -> None:
        self.machines, self.run = machines, Run(machines.runs / name)
        self._random = random.Random(seed)
        self.strikes: dict[str, Callable[[Fault, Node], Hit]] = {
            **dict.fromkeys(("lose", "reboot", "lose_disk"), self._power_off),
            **dict.fromkeys(("partition", "cut_control"), self._cut_off),
            **dict.fromkeys(("cut_fabric", "cut_fabric_one_way"), self._cut_fabric),
            **dict.fromkeys(("delay", "limit", "flap"), self._disturb),
            **dict.fromkeys(("stop", "kill"), self._signal),
            "drain": self._drain,
            "freeze": self._freeze,
        }

    def hit(self, strike: Strike) -> Hit:
        """Strike it on the machine of its rank or of the driver, or on one that trains."""
        fault, self._rank = strike.fault, next(iter(strike.ranks), -1)
        if strike.ranks:
            node = self.node(node_of(self.status(), self._rank))
        elif fault.target in ("driver", "driver_node"):
            node = self.node(home_of(self.status()))
        else:
            node = self._trains()
        return self.strikes[fault.kind](fault, node)

    # ---- what the run is like -----------------------------------------------------------------
    def look(self) -> Status | None:
        """What the driver answers now, None while none does."""
        found = self.machines.status(self.run.name).get("status")
        return msgspec.convert(found, Status, str_keys=True) if found else None

    def status(self) -> Status:
        """What the driver answers, once one does."""
        found: list[Status] = []

        def answers() -> bool:
            found.extend(filter(None, [self.look()]))
            return bool(found)

        self.until(answers, "no driver answers")
        return found[0]

    def evidence(self) -> str:
        """What happened last in the run, and what runs on the machines."""
        sql = "SELECT unix_s, epoch, name, fields FROM events ORDER BY id DESC LIMIT 60"
        lines = [" ".join(map(str, row)) for row in reversed(query(self.run, sql))]
        lines += [f"{node.name}: {[role_of(one) for one in node.processes()]}"
                  for node in self.machines.bed.nodes if node.is_up]  # fmt: skip
        return "\n".join([str(self.look()), *lines])

    def until(
        self, condition: Callable[[], bool], what: str, limit_s: float = STEP_LIMIT_S
    ) -> None:
        if not wait_until(condition, limit_s, every_s=0.1):
            print(self.evidence(), file=sys.stderr)
            raise TimeoutError(f"{self.run.name}: {what} within {limit_s:g} s")

    def states(self) -> dict[int, str]:
        status = self.look()
        return dict(status.nodes) if status is not None else {}

    def _trains(self) -> Node:
        """One that has ranks, and not the driver."""
        status = self.status()
        home = home_of(status)
        active = [n for n, state in status.nodes.items() if state == "active" and n != home]
        return self.node(self._random.choice(active))

    def node(self, index: int) -> Node:
        return self.machines.bed.node(index)

    def _has_ranks(self, node: Node) -> bool:
        """A spare may have the driver: a node that was given up for its fabric keeps it."""
        return self.states()[node.index] == "active"

    # ---- power, disks, planned ends -----------------------------------------------------------
    def _power_off(self, fault: Fault, node: Node) -> Hit:
        """A reboot is over before anybody notices."""
        has_ranks = self._has_ranks(node)
        node.kill()

        def boot() -> None:
            if fault.kind == "lose_disk":
                shutil.rmtree(node.root / "headway", ignore_errors=True)
            self.machines.boot(node.index)

        if fault.kind == "reboot":
            boot()
            return Hit(node, has_ranks)
        return Hit(node, has_ranks, boot)

    def _drain(self, _: Fault, node: Node) -> Hit:
        """With a deadline; the machine comes back by itself afterwards, as under systemd. It may
        write until its node has ended."""
        self.machines.headway("drain", self.run.name, str(node.index), "--notice", "60")

        def come_back() -> None:
            self.until(lambda: not node.processes(), f"{node.name} does not end", RETURN_LIMIT_S)
            self.machines.keep(self.run.name, node.index)

        return Hit(node, begins_anew=True, undo=come_back)

    # ---- the network --------------------------------------------------------------------------
    def _cut_off(self, fault: Fault, node: Node) -> Hit:
        """From all others, or for everything but the ranks' own traffic."""
        has_ranks = self._has_ranks(node)
        cut = self.machines.partition if fault.kind == "partition" else self.machines.cut_control
        cut(node.index)
        if fault.fences:
            return Hit(node, has_ranks, self.machines.heal)
        # all train on, which shows in the checkpoints: the metrics may come from this machine
        time.sleep(fault.seconds / 2)
        before = newest(self.run.folder.checkpoints)
        time.sleep(fault.seconds / 2)
        after = newest(self.run.folder.checkpoints)
        self.machines.heal()
        trains_on = before is not None and after is not None and after.step > before.step
        return Hit(node, facts={"trains_on": trains_on})

    def _cut_fabric(self, fault: Fault, node: Node) -> Hit:
        """A person repairs the network and starts the node that the verdict has given up. If that
        has the driver, its driver may write."""
        pairs = [(node.index, other) for other in self.states() if other != node.index]
        if fault.target == "pair":
            pairs = [self._pair()]
            node = self.node(pairs[0][0])
        other = pairs[0][1] if fault.target == "pair" else None
        began = time.time()
        self.machines.cut_fabric(node.index, other, one_way=fault.kind == "cut_fabric_one_way")
        hit = Hit(node, begins_anew=True)

        def repair() -> None:
            self.machines.heal()
            self.until(lambda: "lost" in self.states().values(), "no node is lost")
            for index in [node for node, state in self.states().items() if state == "lost"]:
                hit.node = self.node(index)
                hit.leads = bool(drivers_of(hit.node))
                words = ("node", "start", "--run", self.run.name, "--node", str(index))
                self.machines.headway(*words)

        def is_named() -> bool:
            known = verdicts_of(self.run.folder.control)
            cuts = [v for v in known if v.kind == "fabric_cut" and v.unix_s >= began]
            rows = [row.value for v in cuts for row in v.evidence if row.name == "pair"]
            return any(_names(row, a, b) or _names(row, b, a) for row in rows for a, b in pairs)

        blamed = [{*pair} for pair in pairs]
        hit.undo, hit.is_named = repair, is_named
        # one, or either one of a pair
        hit.facts["to_blame"] = sorted(blamed[0].intersection(*blamed))
        return hit

    def _pair(self) -> tuple[int, int]:
        """Two machines whose ranks are in one group."""
        nodes = {row.rank: row.node for row in self.status().ranks}
        first = self._random.choice(sorted(nodes))
        return nodes[first], nodes[first ^ self._random.choice([1, 2])]

    def _disturb(self, fault: Fault, node: Node) -> Hit:
        """Slow is not lost, and what is short is packet loss: no machine is given up."""
        if fault.kind == "delay":
            a, b = self._pair()
            node = self.node(a)
            self.machines.bed.delay(a, b, DELAY_MS)
        elif fault.kind == "limit":
            self.machines.bed.limit(node.index, LIMIT_MBIT)
        else:
            self.machines.cut_fabric(node.index)
        time.sleep(fault.seconds)
        self.machines.heal()
        return Hit(node)

    # ---- processes ----------------------------------------------------------------------------
    def _freeze(self, fault: Fault, node: Node) -> Hit:
        """A new driver may have the former one's machine powered off meanwhile, see ``fence``."""
        node.freeze()
        time.sleep(fault.seconds)
        if node.is_up:
            node.thaw()
        else:
            node.boot()
        return Hit(node)

    def _signal(self, fault: Fault, node: Node) -> Hit:
        number, roles = NUMBERS[fault.kind], fault.target.split(" and ")
        if fault.target == "worker":
            pid = pids_of(self.status())[self._rank]
            victims = [one for one in node.processes() if _pid_inside(one.pid) == pid]
        else:
            victims = [one for one in node.processes() if role_of(one) in roles]
        assert len(victims) >= len(roles), (roles, [role_of(one) for one in node.processes()])
        for one in victims:
            one.kill(number)
        if fault.name == "stop executor":  # its init ends it, and starts another one
            self.until(victims[0].is_terminating, "the executor is not ended", RETURN_LIMIT_S)
        return Hit(node, begins_anew=fault.target == "worker")


def command_of(pid: int) -> str:
    """Its words, empty if it has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def drivers_of(node: Node) -> int:
    """How many drivers the machine has."""
    commands = [command_of(one.pid) for one in node.processes()]
    return sum(" -m headway.controller driver" in command for command in commands)


def _names(evidence: str, node: int, other: int) -> bool:
    return f"node {node} (" in evidence and f" to node {other} (" in evidence


def _pid_inside(pid: int) -> int:
    """The pid that a process has in its own namespace."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text()
        return int(re.findall(r"NSpid:.*\s(\d+)", text)[0])
    return -1
