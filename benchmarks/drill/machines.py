"""A run on separate machines of this host (namespaces, see ``headway.testkit.machines``).

Five machines, four of which train with pp 2 x dp 2, and a sixth for the console. They share one
folder, for checkpoints, journal and lease, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from headway.common.wire.messages.driver import Status
from headway.testkit.bed.writes import Writes
from headway.testkit.journal import query
from headway.testkit.machines.fencing import EVENTS, writes_after_fencing

from benchmarks.drill.drilled import DrilledRun
from benchmarks.drill.machine_faults import RETURN_LIMIT_S, MachineFaults, drivers_of

SETTINGS = (
    "model.hidden=64", "model.heads=4", "model.layers=2", "model.seq_len=128", "train.dtype=fp32",
    "train.eval_every=0", "train.sample_tokens=0", "ckpt.durable_every=10",
    "recovery.max_crashes=1000",
)  # fmt: skip
CONFIG = Path(__file__).resolve().parents[2] / "examples" / "tiny.toml"


class MachinesRun(MachineFaults, DrilledRun):
    """Steps count when the journal has their metrics, since they are complete on all ranks then."""

    num_training = 4

    def ready(self) -> Status:
        """Once two more steps are complete, all machines take part and the spare is ready."""
        generation, step = self.newest()
        self.until(lambda: self.newest() >= (generation, step + 2), "no steps")
        self.await_whole()
        self.until(lambda: not self.status().troubles, "a machine is in trouble")
        return self.status()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Records what machines write to the shared folder meanwhile."""
        self._generation, _ = self.newest()
        [(self._since_id,)] = query(self.run, "SELECT max(id) FROM events")
        self._began_unix_s = time.time()
        with Writes(self.machines.shared) as self._writes:
            yield

    def strike(self) -> None:
        """On the machine, or a machine, of the fault's target."""
        self._hit = self.hit(self.now)
        self._machine = self._hit.node.name
        is_anew = self._hit.begins_anew
        generation, step = self.newest()
        self._beyond = (self._generation + 1, -1) if is_anew else (generation, step + 2)

    def await_steps(self) -> None:
        """Of a later generation where one must follow."""
        self.until(lambda: self.newest() > self._beyond, f"{self.now}: no step of all ranks")
        if self._hit.is_named is not None:
            self._hit.facts["pair_is_named"] = self._hit.is_named()

    def undo(self) -> None:
        """Power, disks, networks."""
        self._hit.undo()

    def row(self) -> dict[str, Any]:
        """Once all machines take part again."""
        self.await_whole()
        found = {
            "machine": self._machine,
            "generations": list(range(self._generation + 1, self.newest()[0] + 1)),
            "given_up_for_cuts": self._given_up_for_cuts(),
            "standstill_s": self._standstill_s(),
            "whole_s": time.monotonic() - self.now.struck_at_s,
            **self._hit.facts,
        }
        if self.now.fault.fences:
            events, hit = query(self.run, EVENTS, (self._since_id,)), self._hit
            found["writes_after_fencing"] = writes_after_fencing(
                events, self._writes, hit.node, leads=hit.leads, apart_from=self.machines.drained
            )
        return found

    def end(self) -> str:
        """No process of it is left on the first machine, either."""
        outcome = super().end()
        self.until(lambda: not self.node(0).processes(), "no end of all processes", 60.0)
        return outcome

    def newest(self) -> tuple[int, int]:
        """Generation and step of the newest step that all ranks have completed."""
        sql = "SELECT generation, step FROM metrics ORDER BY generation DESC, step DESC LIMIT 1"
        rows = query(self.run, sql)
        return (int(rows[0][0]), int(rows[0][1])) if rows else (-1, -1)

    def await_whole(self) -> None:
        """Until every machine takes part again, and one driver leads."""
        wanted = ["active"] * self.num_training + ["spare"]

        def is_whole() -> bool:
            up = [node for node in self.machines.bed.nodes if node.is_up]
            return sorted(self.states().values()) == wanted and sum(map(drivers_of, up)) == 1

        self.until(is_whole, "a machine does not return", RETURN_LIMIT_S)

    # ---- what it cost -------------------------------------------------------------------------
    def _given_up_for_cuts(self) -> list[int]:
        """The nodes that a verdict on the fabric has cost."""
        sql = "SELECT fields FROM events WHERE name = 'node_lost' AND id > ? ORDER BY id"
        found = [json.loads(fields) for (fields,) in query(self.run, sql, (self._since_id,))]
        return [one["node"] for one in found if "fabric" in one["reason"]]

    def _standstill_s(self) -> float:
        """The longest time between two completed steps that still count."""
        sql = "SELECT unix_s FROM metrics WHERE unix_s > ? ORDER BY unix_s"
        times = [unix_s for (unix_s,) in query(self.run, sql, (self._began_unix_s,))]
        return round(max(b - a for a, b in pairwise([self._began_unix_s, *times])), 2)
