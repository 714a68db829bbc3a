"""The scripted entries of the catalogue, D1 to D15: each breaks one thing that is not a clean
death, and judges what is true after."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.drill import judge as must
from benchmarks.drill import processes, state
from benchmarks.drill.judge import Promise, Report
from benchmarks.drill.means import why_not
from benchmarks.drill.rig import Rig
from benchmarks.drill.scene import Scene


@dataclass(frozen=True)
class Drill:
    """What is done, what must be true after it, and what it needs."""

    act: Callable[[Scene], Report]
    limit_s: float
    """All ranks must step again within it; 0: it is not about that."""
    promises: Sequence[Promise]
    what: str
    """Its promises, in a sentence."""
    need: str = ""
    """See ``benchmarks.drill.means``."""

    def judge(self, report: Report) -> list[str]:
        """What is wrong with a report of this drill."""
        wrong = [line for promise in self.promises for line in promise(report)]
        if self.limit_s:
            wrong += must.late(report, "recovered_s", self.limit_s, "all ranks stepping")
        return wrong


DRILLS = {
    "D1": Drill(processes.d1, 30, [must.epochs_rise],
        "A successor with a higher epoch leads; the old leader writes nothing more."),
    "D2": Drill(processes.d2, 30, [must.same_generation, must.nodes_well, must.one_monitor_listens],
        "A locked journal costs nobody anything."),
    "D3": Drill(state.d3, 45, [must.executors_live],
        "A full disk ends no executor, and afterwards all ranks step.", "mount"),
    "D4": Drill(state.d4, 45, [must.from_source("durable", control="arena"), must.arena_named],
        "A damaged arena is named and not used."),
    "D5": Drill(state.d5, 0, [must.digest_or_refusal],
        "Flipped bits are named and never become weights."),
    "D6": Drill(processes.d6, 75, [],
        "Ranks of a node that cannot fork run again, there or elsewhere.", "freezer"),
    "D7": Drill(processes.d7, 30, [must.same_workers, must.same_generation, must.debugger_attached],
        "A debugger may look at a rank."),
    "D8": Drill(processes.d8, 45, [must.same_workers, must.dataloader_named],
        "A hung data daemon costs no rank, and is blamed itself.", "freezer"),
    "D9": Drill(processes.d9, 45, [must.nodes_well, must.old_worker_ended],
        "A silent executor costs no training, or at most its place until it is back.", "freezer"),
    "D10": Drill(processes.d10, 0, [must.metrics_continue, must.no_gaps],
        "A clock that goes back loses no metrics.", "clock"),
    "D11": Drill(state.d11, 60, [must.from_source("arena", control=""), must.one_step_again],
        "A run that is started again over its snapshots repeats one step at most."),
    "D12": Drill(processes.d12, 0, [must.fails_by_name],
        "The same exception, repeated, ends the run by name, whichever process dies meanwhile."),
    "D13": Drill(state.d13, 60, [must.from_source("durable", "durable"), must.refused_and_kept],
        "Damaged checkpoints end the run by name and stay; once they are repaired it continues."),
    "D14": Drill(state.d14, 45, [must.from_source("durable", "durable"), must.not_started_over],
        "Another folder is not taken for the run's own: the run waits for its checkpoints."),
    "D15": Drill(state.d15, 45, [must.same_workers, must.same_generation, must.nodes_well,
                                 must.steps_meanwhile, must.no_gaps],
        "While its folder hangs a run trains on and loses neither a process nor a metric.",
        "frozen disk"),
}  # fmt: skip


def perform(name: str, seed: int, *, control: bool = False) -> tuple[Report, list[str]]:
    """One drill in a place of its own; returns its report and what is wrong."""
    drill, mounts = DRILLS[name], Path("/proc/mounts")
    with Rig(own_clock=drill.need == "clock", own_disk=drill.need == "mount") as rig:
        scene = Scene(rig, seed, faulty=not control, limit_s=drill.limit_s or 45.0)
        report = drill.act(scene)
    wrong = drill.judge(report) + must.left(report)
    if rig.folder.exists() or str(rig.folder) in mounts.read_text():
        wrong.append(f"{rig.folder} is left")
    return report, wrong


def report(
    names: Sequence[str], seeds: Sequence[int], *, control: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Perform them, with a line for each; returns their reports and which failed."""
    rows = []
    for seed in seeds:
        for name in names:
            title, begun = f"{name}{' control' if control else ''} seed {seed}", time.monotonic()
            found: Report = {}
            if reason := why_not(DRILLS[name].need):
                verdict, what = "SKIP", reason
            else:
                try:
                    found, wrong = perform(name, seed, control=control)
                except Exception as error:
                    traceback.print_exc()
                    wrong = [f"{type(error).__name__}: {error}"[:300]]
                verdict = "FAIL" if wrong else "PASS"
                kept = "all is well without the fault" if control else DRILLS[name].what
                what = "; ".join(wrong) or kept
            print(f"{verdict} {title} ({time.monotonic() - begun:.0f} s): {what}", flush=True)
            rows.append({"drill": name, "seed": seed, "verdict": verdict, "what": what})
            rows[-1]["report"] = found
    return rows, [f"{row['drill']} seed {row['seed']}: {row['what']}" for row in rows
                  if row["verdict"] == "FAIL"]  # fmt: skip
