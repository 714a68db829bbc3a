"""Faults of whole machines, struck on a run that trains on them."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from headway.ckpt_store.client import newest
from headway.console.run import Run
from headway.health.client import verdicts_of
from headway.testkit.bed.node import Node
from headway.testkit.bed.writes import Writes
from headway.testkit.journal import query
from headway.testkit.machines import Machines
from headway.testkit.machines.fencing import EVENTS, writes_after_fencing

STEP_LIMIT_S = 180.0
RETURN_LIMIT_S = 120.0
OF_PROCESSES = (
    "kill an executor", "stop an executor", "kill an init", "kill init and executor",
    "kill the driver",
)  # fmt: skip
"""Kinds that end no worker: the generation continues."""
WITH_A_LOSER = (
    "partition of the driver's machine", "partition of another machine",
    "cut control of the driver's machine", "cut the fabric of a machine",
    "cut the fabric between two machines", "cut the fabric from one machine to another",
    "freeze a machine for 20 s", "freeze the driver's machine for 20 s",
)  # fmt: skip
"""Kinds after which a machine that still runs must write nothing."""
FLAP_S = 3.0
"""Equal to ``health.fabric_silence_s``, which starts once an agent has noticed the silence."""
CUT_S = 15.0
"""Longer than ``recovery.node_lost_s``."""
DELAY_MS, LIMIT_MBIT, SLOW_S = 100.0, 5.0, 10.0


class Faults:
    """The faults for run ``name``. Each chooses a machine, injects the fault and returns what it
    did: ``begins_anew`` if a new generation must follow, ``undo`` to repair the damage, ``loser``,
    once that is repaired, for the machine that must not have written any more, but for its driver
    if it ``leads``."""

    def __init__(self, machines: Machines, name: str, seed: int) -> None:
        self.machines, self.name, self._random = machines, name, random.Random(seed)
        self.run = Run(machines.runs / name)
        self.kinds: dict[str, Callable[[], dict[str, Any]]] = {
            "power off a machine that trains": lambda: self._power(self._trains()),
            "power off the driver's machine": lambda: self._power(self.driver()),
            "reboot a machine at once": self._reboot,
            "a machine loses its disk": self._lose_disk,
            "drain a machine": self._drain,
            "partition of the driver's machine": lambda: self._partition(self.driver()),
            "partition of another machine": lambda: self._partition(self._trains()),
            "cut control of the driver's machine": self._cut_control_of_driver,
            "cut control of another machine": self._cut_control,
            "cut the fabric of a machine": self._cut_fabric,
            "cut the fabric between two machines": self._cut_pair,
            "cut the fabric from one machine to another": lambda: self._cut_pair(one_way=True),
            "delay of 100 ms between two machines for 10 s": self._delay,
            "5 Mbit/s at a machine for 10 s": self._limit,
            "flap of the fabric of a machine for 3 s": self._flap,
            "stop a worker": lambda: self._signal_worker(signal.SIGSTOP),
            "freeze a machine for 20 s": lambda: self._freeze(self._trains()),
            "freeze the driver's machine for 20 s": lambda: self._freeze(self.driver()),
            "kill a worker": lambda: self._signal_worker(signal.SIGKILL),
            "kill an executor": lambda: self._kill("executor"),
            "stop an executor": self._stop_executor,
            "kill an init": lambda: self._kill("init"),
            "kill init and executor": lambda: self._kill("init", "executor"),
            "kill the driver": lambda: self._kill_on(self.driver(), "driver"),
        }

    # ---- what the run is like -----------------------------------------------------------------
    def status(self) -> dict[str, Any]:
        """What the driver answers; only the phase while none does."""
        found = self.machines.status(self.name)
        return dict(found.get("status") or {"phase": found["phase"], "nodes": {}, "services": {}})

    def newest(self) -> tuple[int, int]:
        """Generation and step of the newest step that all ranks have completed, by the journal."""
        newest = "SELECT generation, step FROM metrics ORDER BY generation DESC, step DESC LIMIT 1"
        rows = query(self.run, newest)
        return (int(rows[0][0]), int(rows[0][1])) if rows else (-1, -1)

    def await_steps(self, num: int = 2) -> None:
        """Until ``num`` more steps are complete."""
        first = self.newest()
        until(lambda: self.newest() >= (first[0], first[1] + num), STEP_LIMIT_S, "no steps")

    def await_whole(self) -> None:
        """Until every machine takes part again, and one driver leads."""

        def is_whole() -> bool:
            states = sorted(self._nodes().values())
            return states == ["active"] * 4 + ["spare"] and self._num_drivers() == 1

        until(is_whole, RETURN_LIMIT_S, "a machine does not return", every_s=0.5)

    def evidence(self) -> str:
        """What happened last in the run, and what runs on the machines."""
        sql = "SELECT unix_s, epoch, name, fields FROM events ORDER BY id DESC LIMIT 60"
        logs = "\n".join(" ".join(map(str, row)) for row in reversed(query(self.run, sql)))
        roles = [f"{node.name}: {[_role(one.pid) for one in node.processes()]}"
                 for node in self.machines.bed.nodes if node.is_up]  # fmt: skip
        return "\n".join([logs, *roles])

    def _nodes(self) -> dict[int, str]:
        return {int(node): status for node, status in self.status()["nodes"].items()}

    def _num_drivers(self) -> int:
        up = [node for node in self.machines.bed.nodes if node.is_up]
        return sum(_drivers(node) for node in up)

    def driver(self) -> Node:
        """The machine of the driver."""
        services = self.status()["services"]
        return self._node(next(int(k) for k, names in services.items() if "driver" in names))

    def _has_ranks(self, node: Node) -> bool:
        """A spare may have the driver: a node that was given up for its fabric keeps it."""
        return self._nodes()[node.index] == "active"

    def _trains(self) -> Node:
        driver = self.driver().index
        active = [n for n, state in self._nodes().items() if state == "active" and n != driver]
        return self._node(self._random.choice(active))

    def _node(self, index: int) -> Node:
        return self.machines.bed.node(index)

    # ---- power, disks, planned ends -----------------------------------------------------------
    def _power(self, node: Node) -> dict[str, Any]:
        has_ranks = self._has_ranks(node)
        node.kill()
        return {"machine": node.name, "undo": node.boot, "begins_anew": has_ranks}

    def _reboot(self) -> dict[str, Any]:
        node = self._trains()
        node.kill()
        node.boot()
        return {"machine": node.name, "begins_anew": True}

    def _lose_disk(self) -> dict[str, Any]:
        node = self._trains()
        node.kill()

        def replace() -> None:
            shutil.rmtree(node.root / "headway", ignore_errors=True)
            node.boot()

        return {"machine": node.name, "undo": replace, "begins_anew": True}

    def _drain(self) -> dict[str, Any]:
        """With a deadline; the machine comes back by itself afterwards, as under systemd.

        A drained machine is not a ``loser``: it may write until its node has ended."""
        node = self._trains()
        self.machines.headway("drain", self.name, str(node.index), "--notice", "60")

        def come_back() -> None:
            until(lambda: not node.processes(), RETURN_LIMIT_S, f"{node.name} does not end")
            self.machines.keep(self.name, node.index)

        return {"machine": node.name, "undo": come_back, "begins_anew": True}

    # ---- the network --------------------------------------------------------------------------
    def _partition(self, node: Node) -> dict[str, Any]:
        return self._cut_off(node, self.machines.partition)

    def _cut_control_of_driver(self) -> dict[str, Any]:
        return self._cut_off(self.driver(), self.machines.cut_control)

    def _cut_control(self) -> dict[str, Any]:
        """Its ranks reach the others and the others have the driver: all of them train on, which
        shows in the checkpoints, since the metrics may come from this machine."""
        node, checkpoints = self._trains(), self.run.folder.checkpoints
        self.machines.cut_control(node.index)
        time.sleep(CUT_S / 2)
        before = newest(checkpoints)
        time.sleep(CUT_S / 2)
        after = newest(checkpoints)
        trains_on = before is not None and after is not None and after.step > before.step
        self.machines.heal()
        return {"machine": node.name, "trains_on": trains_on}

    def _cut_off(self, node: Node, cut: Callable[[int], None]) -> dict[str, Any]:
        has_ranks = self._has_ranks(node)
        cut(node.index)
        return {
            "machine": node.name,
            "undo": self.machines.heal,
            "begins_anew": has_ranks,
            "loser": node,
        }

    def _cut_fabric(self) -> dict[str, Any]:
        node = self._trains()
        self.machines.cut_fabric(node.index)
        return self._cut_pairs(node, [(node.index, n) for n in self._nodes() if n != node.index])

    def _cut_pair(self, *, one_way: bool = False) -> dict[str, Any]:
        pair = self._pair()
        self.machines.cut_fabric(*pair, one_way=one_way)
        return self._cut_pairs(self._node(pair[0]), [pair])

    def _pair(self) -> tuple[int, int]:
        """Two machines whose ranks are in one group."""
        ranks = {rank["rank"]: rank["node"] for rank in self.status()["ranks"]}
        first = self._random.choice(sorted(ranks))
        return ranks[first], ranks[first ^ self._random.choice([1, 2])]

    def _cut_pairs(self, node: Node, pairs: list[tuple[int, int]]) -> dict[str, Any]:
        """A person repairs the network and starts the node that the verdict has given up: the
        ``loser``. If it ``leads``, its driver may write."""
        began = time.time()
        found: dict[str, Any] = {"machine": node.name, "begins_anew": True}

        def repair() -> None:
            self.machines.heal()
            until(lambda: "lost" in self._nodes().values(), RETURN_LIMIT_S, "no node is lost")
            for index in [node for node, state in self._nodes().items() if state == "lost"]:
                found["loser"] = node = self._node(index)
                found["leads"] = bool(_drivers(node))
                words = ("node", "start", "--run", self.name, "--node", str(index))
                self.machines.headway(*words)

        def named() -> bool:
            known = verdicts_of(self.run.folder.control)
            cuts = [v for v in known if v.kind == "fabric_cut" and v.unix_s >= began]
            rows = [row.value for v in cuts for row in v.evidence if row.name == "pair"]
            return any(_names(row, a, b) or _names(row, b, a) for row in rows for a, b in pairs)

        blamed = [{*pair} for pair in pairs]
        found["to_blame"] = sorted(blamed[0].intersection(*blamed))  # one, or either one of a pair
        found |= {"pair_is_named": named, "undo": repair}
        return found  # itself: repairing adds to it

    def _flap(self) -> dict[str, Any]:
        """Too short to distinguish from packet loss: it may cost a pause, but no machine."""
        node = self._trains()
        self.machines.cut_fabric(node.index)
        time.sleep(FLAP_S)
        self.machines.heal()
        return {"machine": node.name}

    def _delay(self) -> dict[str, Any]:
        """Slow is not lost: training continues, and no machine is given up."""
        a, b = self._pair()
        self.machines.bed.delay(a, b, DELAY_MS)
        time.sleep(SLOW_S)
        self.machines.heal()
        return {"machine": self._node(a).name}

    def _limit(self) -> dict[str, Any]:
        """The same for a cable that carries little."""
        node = self._trains()
        self.machines.bed.limit(node.index, LIMIT_MBIT)
        time.sleep(SLOW_S)
        self.machines.heal()
        return {"machine": node.name}

    def given_up_for_cuts(self, since_id: int) -> list[int]:
        """The nodes that a verdict on the fabric has cost, by the journal from an event on."""
        sql = "SELECT fields FROM events WHERE name = 'node_lost' AND id > ? ORDER BY id"
        found = [json.loads(fields) for (fields,) in query(self.run, sql, (since_id,))]
        return [one["node"] for one in found if "fabric" in one["reason"]]

    def writes_after_fencing(
        self, writes: Writes, node: Node, since_id: int, *, leads: bool
    ) -> list[str]:
        """What a machine that has lost the run changed in the shared folder until its return."""
        events, drained = query(self.run, EVENTS, (since_id,)), self.machines.drained
        return writes_after_fencing(events, writes, node, leads=leads, apart_from=drained)

    def standstill_s(self, since_unix_s: float) -> float:
        """The longest time since then between two completed steps that still count."""
        sql = "SELECT unix_s FROM metrics WHERE unix_s > ? ORDER BY unix_s"
        times = [unix_s for (unix_s,) in query(self.run, sql, (since_unix_s,))]
        return round(max(b - a for a, b in pairwise([since_unix_s, *times])), 2)

    def newest_event(self) -> int:
        """Its id in the journal."""
        return int(query(self.run, "SELECT max(id) FROM events")[0][0])

    # ---- processes ----------------------------------------------------------------------------
    def _freeze(self, node: Node) -> dict[str, Any]:
        """A new driver may have the former one's machine powered off meanwhile, see ``fence``."""
        node.freeze()
        time.sleep(20.0)
        if node.is_up:
            node.thaw()
        else:
            node.boot()
        return {"machine": node.name, "loser": node}

    def _signal_worker(self, number: signal.Signals) -> dict[str, Any]:
        rank = self._random.choice(self.status()["ranks"])
        node = self._node(rank["node"])
        for one in node.processes():
            if _pid_inside(one.pid) == rank["pid"]:
                one.kill(number)
        return {"machine": node.name, "rank": rank["rank"], "begins_anew": True}

    def _stop_executor(self) -> dict[str, Any]:
        """Its init ends it, and starts another one."""
        node = self._trains()
        [executor] = [one for one in node.processes() if _role(one.pid) == "executor"]
        executor.kill(signal.SIGSTOP)
        until(executor.is_terminating, RETURN_LIMIT_S, "the executor is not ended")
        return {"machine": node.name}

    def _kill(self, *roles: str) -> dict[str, Any]:
        return self._kill_on(self._trains(), *roles)

    def _kill_on(self, node: Node, *roles: str) -> dict[str, Any]:
        victims = [one for one in node.processes() if _role(one.pid) in roles]
        assert len(victims) >= len(roles), (roles, [_role(p.pid) for p in node.processes()])
        for one in victims:
            one.kill()
        return {"machine": node.name}


def until(
    condition: Callable[[], bool], limit_s: float, what: str, *, every_s: float = 0.1
) -> None:
    """Wait. Raises TimeoutError with ``what``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} within {limit_s:g} s")
        time.sleep(every_s)


def _drivers(node: Node) -> int:
    """How many drivers the machine has."""
    commands = [_command(one.pid) for one in node.processes()]
    return sum(words[1:3] == ["headway.controller", "driver"] for words in commands)


def _names(evidence: str, node: int, other: int) -> bool:
    return f"node {node} (" in evidence and f" to node {other} (" in evidence


def _role(pid: int) -> str:
    """What a process of a run was started as, by its environment."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((w[13:].decode() for w in words if w.startswith(b"HEADWAY_ROLE=")), "")


def _command(pid: int) -> list[str]:
    """Its arguments from ``-m`` on."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
    return words[words.index("-m") :] if "-m" in words else []


def _pid_inside(pid: int) -> int:
    """The pid that a process has in its own namespace."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return -1
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
