"""Faults of whole machines: ``python -m benchmarks.machines``.

Five separate machines on this host (namespaces, see ``headway.testkit.machines``), four of which
train with pp 2 x dp 2, and a sixth for the console. They share the checkpoints folder and nothing
else. A seeded plan of faults, each struck when all ranks step; afterwards all ranks must step again
in a later generation without help, and a machine that was lost must be back as a spare. At the end
the digest of the parameters is compared with that of an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headway.console.run import Run
from headway.testkit.bed.node import Node
from headway.testkit.machines import Machines

from benchmarks.digest import final_digest

SETTINGS = (
    "model.hidden=64", "model.heads=4", "model.layers=2", "model.seq_len=128", "train.dtype=fp32",
    "train.eval_every=0", "train.sample_tokens=0", "ckpt.durable_every=10",
    "recovery.max_crashes=1000",
)  # fmt: skip
CONFIG = Path(__file__).resolve().parents[1] / "examples" / "tiny.toml"
STEP_LIMIT_S = 180.0
RETURN_LIMIT_S = 120.0


class Drill:
    """One run under faults."""

    def __init__(self, machines: Machines, name: str, seed: int) -> None:
        self.machines, self.name, self._random = machines, name, random.Random(seed)
        self.kinds: dict[str, Callable[[], dict[str, Any]]] = {
            "power off a machine that trains": lambda: self._power(self._trains()),
            "power off the driver's machine": lambda: self._power(self._driver()),
            "reboot a machine at once": self._reboot,
            "a machine loses its disk": self._lose_disk,
            "drain a machine": self._drain,
            "partition of the driver's machine": lambda: self._partition(self._driver()),
            "partition of another machine": lambda: self._partition(self._trains()),
            "freeze a machine for 20 s": self._freeze,
            "kill a worker": self._kill_worker,
            "kill an executor": lambda: self._kill("executor"),
            "kill an init": lambda: self._kill("init"),
            "kill init and executor": lambda: self._kill("init", "executor"),
            "kill the driver": lambda: self._kill_on(self._driver(), "driver"),
        }
        self.places: dict[str, int] = {}

    # ---- what the run is like -----------------------------------------------------------------
    def status(self) -> dict[str, Any]:
        """What the driver answers; only the phase while none does."""
        found = self.machines.status(self.name)
        return dict(found.get("status") or {"phase": found["phase"], "nodes": {}, "services": {}})

    def _generation(self) -> int:
        return int(self.status().get("generation", -1))

    def is_stepping(self, beyond: int = 0) -> bool:
        status = self.status()
        steps = [rank["step"] for rank in status.get("ranks", ()) if rank["status"] == "running"]
        return len(steps) == 4 and min(steps) > beyond

    def await_steps(self, beyond: int = 0) -> None:
        """Until all ranks step, past step ``beyond``."""
        _until(lambda: self.is_stepping(beyond), STEP_LIMIT_S, f"steps: {self.status()}")

    def _nodes(self) -> dict[int, str]:
        return {int(node): status for node, status in self.status()["nodes"].items()}

    def await_spare(self) -> None:
        """Until every machine takes part again."""

        def is_whole() -> bool:
            states = sorted(self._nodes().values())
            return states == ["active"] * 4 + ["spare"]

        _until(is_whole, RETURN_LIMIT_S, f"a machine does not return: {self.status()}")

    def _driver(self) -> Node:
        services = self.status()["services"]
        return self._node(next(int(k) for k, names in services.items() if "driver" in names))

    def _trains(self) -> Node:
        driver = self._driver().index
        active = [n for n, state in self._nodes().items() if state == "active" and n != driver]
        return self._node(self._random.choice(active))

    def _node(self, index: int) -> Node:
        return self.machines.bed.node(index)

    # ---- one fault ----------------------------------------------------------------------------
    def strike(self, kind: str) -> dict[str, Any]:
        """From stepping to stepping, and to a full cluster; returns what was measured."""
        self.await_steps()
        self.await_spare()
        before = self.status()
        began = time.monotonic()
        found = self.kinds[kind]()
        if found.pop("begins_anew", False):
            _until(lambda: self._generation() > before["generation"], STEP_LIMIT_S, kind)
        self.await_steps(int(self.status().get("step", 0)) + 1)
        found["stepping_s"] = round(time.monotonic() - began, 2)
        if (undo := found.pop("undo", None)) is not None:
            undo()
        self.await_spare()
        found["whole_s"] = round(time.monotonic() - began, 2)
        after = self.status()
        generations = (before["generation"], after["generation"])
        return {"fault": kind, **found, "generations": generations}

    def _power(self, node: Node) -> dict[str, Any]:
        node.kill()
        return {"machine": node.name, "undo": node.boot, "begins_anew": True}

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
        """With a deadline; the machine comes back by itself afterwards, as under systemd."""
        node = self._trains()
        self.machines.headway("drain", self.name, node.index, "--notice", "60")

        def come_back() -> None:
            _until(lambda: not node.processes(), RETURN_LIMIT_S, f"{node.name} does not end")
            self.machines.keep(self.name, node.index)

        return {"machine": node.name, "undo": come_back, "begins_anew": True}

    def _partition(self, node: Node) -> dict[str, Any]:
        self.machines.partition(node.index)
        return {"machine": node.name, "undo": self.machines.heal, "begins_anew": True}

    def _freeze(self) -> dict[str, Any]:
        node = self._trains()
        node.freeze()
        time.sleep(20.0)
        node.thaw()
        return {"machine": node.name}

    def _kill_worker(self) -> dict[str, Any]:
        rank = self._random.choice(self.status()["ranks"])
        node = self._node(rank["node"])
        for one in node.processes():
            if _pid_inside(one.pid) == rank["pid"]:
                one.kill()
        return {"machine": node.name, "rank": rank["rank"], "begins_anew": True}

    def _kill(self, *roles: str) -> dict[str, Any]:
        return self._kill_on(self._trains(), *roles)

    def _kill_on(self, node: Node, *roles: str) -> dict[str, Any]:
        victims = [one for one in node.processes() if _role(one.pid) in roles]
        assert len(victims) >= len(roles), (roles, [_role(p.pid) for p in node.processes()])
        for one in victims:
            one.kill()
        return {"machine": node.name}


def _role(pid: int) -> str:
    """What a process of a run was started as, by its environment."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((w[13:].decode() for w in words if w.startswith(b"HEADWAY_ROLE=")), "")


def _pid_inside(pid: int) -> int:
    """The pid that a process has in its own namespace."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return -1
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])


def _until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.5)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if the digests are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--steps", type=int, default=0, help="of both runs; 0: by --faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=Path("data/stdlib"))
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(argv)
    if reason := Machines.missing():
        print(f"no separate machines here: {reason}", file=sys.stderr)
        return 2
    steps, corpus = options.steps or 250 * options.faults, options.corpus.resolve()
    with tempfile.TemporaryDirectory(prefix="hw-machines-") as folder:
        visible = [corpus, CONFIG.parent]
        with Machines(Path(folder), count=5, visible=visible) as machines:
            return _drill(machines, options, steps, corpus)


def _drill(machines: Machines, options: argparse.Namespace, steps: int, corpus: Path) -> int:
    settings = (*SETTINGS, f"train.steps={steps}", f"data.path={corpus}")
    machines.run(CONFIG, "drilled", *settings)
    drill = Drill(machines, "drilled", options.seed)
    order = random.Random(options.seed)
    kinds = list(drill.kinds) * (options.faults // len(drill.kinds) + 1)
    rows = []
    for kind in order.sample(kinds, options.faults):
        row = drill.strike(kind)
        rows.append(row)
        print(json.dumps(row), flush=True)
    stopped_at = drill.status()["step"]
    print(f"all {len(rows)} recovered; at step {stopped_at} of {steps}", flush=True)
    digest = _to_end(machines, "drilled")
    machines.run(CONFIG, "reference", *settings)
    reference = _to_end(machines, "reference")
    result = {
        "command": "python -m benchmarks.machines",
        "hardware": f"{platform.machine()}, 2 cores",
        "faults": rows,
        "steps": steps,
        "digests": [digest, reference],
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print("digests", "equal" if digest == reference else f"DIFFER: {digest} {reference}")
    return int(digest != reference)


def _to_end(machines: Machines, name: str) -> str:
    def is_over() -> bool:
        return machines.status(name).get("phase") in ("finished", "failed", "stopped")

    _until(is_over, 3600.0, f"{name} does not end")
    return final_digest(Run(machines.runs / name))


if __name__ == "__main__":
    sys.exit(main())
