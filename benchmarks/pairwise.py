"""Does the pairwise check find the one bad node among eight, and spare the healthy ones?

``python -m benchmarks.pairwise``.

Simulated: ``--simulated`` fleets per case, in which each burst has 10 % noise, or the nodes' own
links and CPUs differ by 10 % (``differing``) and the bad node has half of its own.

Emulated, as root: eight nodes in namespaces with real peers, cables and CPU quotas. Each node's own
cable and quota differ by 10 %, and one node has half of the usual cable (``link``) or quota
(``cpu``), or none has (``healthy``). A trial is right if exactly the bad node is named, within two
rounds.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from headway.common.polling import wait_until
from headway.health.pairwise.config import PairwiseConfig
from headway.health.pairwise.hosts import DEFAULT_PORT
from headway.health.pairwise.plan import (
    conclude,
    first_round,
    second_round,
    slow_nodes,
    still_slow,
)
from headway.testkit.bed import Bed
from headway.testkit.bed.process import Process

from benchmarks.report import finish, parser

Case = Literal["link", "cpu", "healthy"]
CASES: tuple[Case, ...] = ("link", "cpu", "healthy")
NODES = 8
NOISE = 0.1
CABLE_MBIT = 100.0
QUOTA = 0.15
"""Of one core: below what a busy machine leaves to a process."""
PARALLEL = 4
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 100_000
READY_S = 60.0


# ---- simulated ----------------------------------------------------------------------------------
def simulate(case: Case, chance: random.Random, *, differing: bool) -> bool:
    """Whether the plan names exactly the bad node of a fleet that is only numbers."""
    config = PairwiseConfig()
    names = [str(number) for number in range(NODES)]
    bad = {chance.choice(names)} if case != "healthy" else set()
    of_nodes, of_bursts = (NOISE, 0.0) if differing else (0.0, NOISE)
    links, cpus = ({node: chance.gauss(1.0, of_nodes) for node in names} for _ in range(2))
    for node in bad:
        (links if case == "link" else cpus)[node] *= 0.5

    def measured(full: float) -> float:
        return full * max(chance.gauss(1.0, of_bursts) for _ in range(config.num_bursts))

    def link(pair: tuple[str, str]) -> float:
        return min(measured(min(links[node] for node in pair)) for _ in range(2))

    limits = config.thresholds
    values = {node: measured(cpus[node]) for node in names}
    again = {node: measured(cpus[node]) for node in slow_nodes(values, limits)}
    planned = first_round(names)
    first = {pair: link(pair) for pair in planned.pairs}
    suspects = second_round(planned, first, limits)
    second = {pair: link(pair) for pair in suspects.pairs}
    named = {*still_slow(again, values, limits), *conclude(first, second, suspects, limits).bad}
    return named == bad


def simulated_shares(count: int, seed: int) -> dict[str, float]:
    """Case -> share of the simulated fleets in which the plan is right."""
    return {
        f"{case}, differing" if differing else case: statistics.mean(
            simulate(case, random.Random(f"{seed} {case} {n}"), differing=differing)
            for n in range(count)
        )
        for case in CASES
        for differing in (False, True)
    }


# ---- emulated -----------------------------------------------------------------------------------
class Emulated:
    """Eight nodes in namespaces with a peer on each; the coordinator runs on the first one."""

    def __init__(self, bed: Bed, shared: Path) -> None:
        self._bed, self._shared = bed, shared
        self._groups: list[Path] = []

    def start(self) -> None:
        """Start the peers and wait until they listen."""
        keys = self._shared / "keys"
        lines = [f"{node.address}:{DEFAULT_PORT}" for node in self._bed.nodes]
        (self._shared / "hosts.txt").write_text("\n".join(lines) + "\n")
        logs = []
        for node, line in zip(self._bed.nodes, lines, strict=True):
            words = ["--endpoint", f"tcp://{line}", "--keys", keys, "--idle-s", "7200"]
            logs.append(self._shared / f"{node.name}.log")
            program = [sys.executable, "-m", "headway.health", "peer", *words]
            one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._confine(node.start(program, env=one_thread, log=logs[-1]))
        is_up = wait_until(lambda: all("listening" in _text(log) for log in logs), READY_S)
        assert is_up, [_text(log) for log in logs]

    def set_speeds(self, case: Case, bad: int, chance: random.Random) -> None:
        """Give each node a cable and a quota of its own, the bad one half of the usual."""
        for number, group in enumerate(self._groups):
            cable, quota = (max(0.7, chance.gauss(1.0, NOISE)) for _ in range(2))
            cable = 0.5 if (case, number) == ("link", bad) else cable
            quota = 0.5 if (case, number) == ("cpu", bad) else quota
            self._bed.limit(number, CABLE_MBIT * cable)
            (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * QUOTA * quota)))

    def check(self) -> dict[str, Any]:
        """The report of the command, run on the first node."""
        words = ["--hosts", self._shared / "hosts.txt", "--keys", self._shared / "keys"]
        command = [sys.executable, "-m", "headway.health", "pairwise", *words, "--json"]
        done = self._bed.node(0).run(
            [*command, "--parallel", str(PARALLEL)], check=False, timeout_s=300.0
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return dict(json.loads(done.stdout))

    def close(self) -> None:
        """Remove the groups of the peers, which have ended with their nodes."""
        for group in self._groups:
            wait_until(lambda group=group: not _text(group / "cgroup.procs"), 10.0)
            with contextlib.suppress(OSError):
                group.rmdir()

    def _confine(self, process: Process) -> None:
        group = CPU_GROUPS / f"headway-pairwise-{process.pid}"
        group.mkdir()
        (group / "cgroup.procs").write_text(str(process.pid))
        self._groups.append(group)


def missing() -> str:
    """What keeps the emulated part from running here, "" if nothing does."""
    if not (CPU_GROUPS / "cpu.cfs_quota_us").exists() and not list(
        CPU_GROUPS.glob("*/cpu.cfs_quota_us")
    ):
        return "there is no cgroup (version 1) for CPU quotas"
    return Bed.missing()


@contextlib.contextmanager
def emulated() -> Iterator[Emulated]:
    """Nodes and peers, for several trials."""
    with tempfile.TemporaryDirectory(prefix="headway-pairwise-") as name:
        disks, shared = Path(name) / "disks", Path(name) / "shared"
        for folder in (disks, shared):
            folder.mkdir()
        with contextlib.ExitStack() as stack:
            bed = Bed(disks, nodes=NODES, shared=[shared])
            made = Emulated(bed, shared)
            stack.callback(made.close)
            stack.enter_context(bed)
            made.start()
            yield made


def trial(place: Emulated, case: Case, chance: random.Random) -> dict[str, Any]:
    """One fleet: who was bad, who was named, and after how long."""
    bad = chance.randrange(NODES)
    place.set_speeds(case, bad, chance)
    began_s = time.monotonic()
    report = place.check()
    hosts = [line.split(".")[3].split(":")[0] for line in report["cpus"][0]]
    named = [hosts.index(name.split(".")[3].split(":")[0]) for name in report["bad"]]
    expected = [] if case == "healthy" else [bad]
    return {
        "case": case,
        "bad": expected,
        "named": named,
        "is_right": named == expected and len(report["links"]) <= 2,
        "seconds": round(time.monotonic() - began_s, 1),
        "reasons": report["bad"],
        "link_mib_per_s": [
            round(min(one["sent_bytes_per_s"], one["received_bytes_per_s"]) / 2**20, 2)
            for links in report["links"]
            for one in links
        ],
        "products_per_s": [round(cpu["products_per_s"], 2) for cpu in report["cpus"][0].values()],
    }


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Case -> ``right of all``."""
    return {
        case: f"{sum(row['is_right'] for row in own)} of {len(own)}"
        for case in CASES
        if (own := [row for row in rows if row["case"] == case])
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns 0 if every emulated trial is right."""
    options = parser(__doc__)
    options.add_argument("--simulated", type=int, default=3000, help="fleets per case")
    options.add_argument("--times", type=int, default=20, help="emulated fleets per case")
    options.add_argument("--only", nargs="+", choices=CASES, default=CASES, help="emulate these")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args(argv)
    simulated = simulated_shares(given.simulated, given.seed)
    shares = ", ".join(f"{case} {share:.2%} right" for case, share in simulated.items())
    print(f"simulated: {shares}", flush=True)
    rows: list[dict[str, Any]] = []
    reason = missing() if given.times else "not asked for"
    if not reason:
        chance = random.Random(given.seed)
        with emulated() as place:
            for case in tuple(given.only) * given.times:
                rows.append(trial(place, case, chance))
                print(json.dumps(rows[-1]), flush=True)
    print("emulated:", summary(rows) or f"skipped: {reason}", flush=True)
    wrong = [f"{row['case']}: bad {row['bad']}, named {row['named']}" for row in rows]
    failures = [text for text, row in zip(wrong, rows, strict=True) if not row["is_right"]]
    return finish(
        given.out, failures, seed=given.seed, nodes=NODES, noise=NOISE, simulated=simulated,
        emulated=summary(rows), skipped=reason, rows=rows,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
