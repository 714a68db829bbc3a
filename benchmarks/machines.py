"""A run under faults of whole machines: ``python -m benchmarks.machines``.

Five separate machines on this host (namespaces, see ``headway.testkit.machines``), four of which
train with pp 2 x dp 2, and a sixth for the console. They share one folder, for checkpoints, journal
and lease, and nothing else. Faults follow a seeded plan; each is injected while all ranks are
stepping. Then all of them must step again without help, and a lost machine must return as a spare.
``standstill_s`` is the longest time without a completed step in the journal; ``stepping_s`` lasts
from the choice of a machine, which queries the driver up to three times, to the second new step.
The digest of the final parameters is compared with that of an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headway.console.run import Run
from headway.testkit.bed.writes import Writes
from headway.testkit.journal import query
from headway.testkit.machines import Machines

from benchmarks.digest import final_digest
from benchmarks.hardware import hardware
from benchmarks.machine_faults import OF_PROCESSES, STEP_LIMIT_S, WITH_A_LOSER, Faults, until

SETTINGS = (
    "model.hidden=64", "model.heads=4", "model.layers=2", "model.seq_len=128", "train.dtype=fp32",
    "train.eval_every=0", "train.sample_tokens=0", "ckpt.durable_every=10",
    "recovery.max_crashes=1000",
)  # fmt: skip
CONFIG = Path(__file__).resolve().parents[1] / "examples" / "tiny.toml"


def strike(faults: Faults, kind: str) -> dict[str, Any]:
    """Inject one fault, wait for full recovery; returns the measurements."""
    faults.await_steps()
    faults.await_whole()
    with Writes(faults.machines.shared) as writes:
        return _strike(faults, kind, writes)


def _strike(faults: Faults, kind: str, writes: Writes) -> dict[str, Any]:
    generation, _ = faults.newest()
    event = faults.newest_event()
    began, began_unix_s = time.monotonic(), time.time()
    found = faults.kinds[kind]()
    is_anew = found.pop("begins_anew", False)
    beyond = (generation + 1, -1) if is_anew else (faults.newest()[0], faults.newest()[1] + 2)
    until(lambda: faults.newest() > beyond, STEP_LIMIT_S, f"{kind}: no step of all ranks")
    row = {"fault": kind, "machine": found["machine"]}
    row["stepping_s"] = round(time.monotonic() - began, 2)
    if "trains_on" in found:
        row["trains_on"] = found["trains_on"]
    if (named := found.get("pair_is_named")) is not None:
        row["pair_is_named"] = named()
    found.get("undo", lambda: None)()
    faults.await_whole()
    if (loser := found.get("loser")) is not None:
        leads = found.get("leads", False)
        row["writes_after_fencing"] = faults.writes_after_fencing(writes, loser, event, leads=leads)
    row["given_up_for_cuts"] = faults.given_up_for_cuts(event)
    row["to_blame"] = found.get("to_blame", [])
    row["standstill_s"] = faults.standstill_s(began_unix_s)
    row["whole_s"] = round(time.monotonic() - began, 2)
    return {**row, "generations": (generation, faults.newest()[0])}


def judge(run: Run, rows: Sequence[dict[str, Any]], steps: int) -> list[str]:
    """Every promise that the run under faults broke; empty if none."""
    wrong = [f"{row['fault']}: written after the fencing: {row['writes_after_fencing']}"
             for row in rows if row.get("writes_after_fencing")]  # fmt: skip
    wrong += [
        f"{row['fault']}: what it wrote after the fencing is not known"
        for row in rows
        if row["fault"] in WITH_A_LOSER and "writes_after_fencing" not in row
    ]
    wrong += [
        f"{row['fault']}: no pair is named" for row in rows if row.get("pair_is_named") is False
    ]
    wrong += [
        f"{row['fault']}: no steps meanwhile" for row in rows if not row.get("trains_on", True)
    ]
    wrong += [
        f"{row['fault']}: given up for cuts: {row['given_up_for_cuts']}, not {row['to_blame']}"
        for row in rows
        if not _is_blamed(row["given_up_for_cuts"], row["to_blame"])
    ]
    wrong += [
        f"{row['fault']}: generation {row['generations'][1]} began, which it must not"
        for row in rows
        if row["fault"] in OF_PROCESSES and row["generations"][0] != row["generations"][1]
    ]
    for table in ("events", "inputs"):
        epochs = [epoch for (epoch,) in query(run, f"SELECT epoch FROM {table} ORDER BY id")]
        if epochs != sorted(epochs):
            wrong.append(f"{table}: rows of a former driver follow those of its successor")
    known = {step for (step,) in query(run, "SELECT step FROM metrics")}
    if missing := sorted(set(range(steps)) - known):
        wrong.append(f"no metrics of {len(missing)} steps: {missing[:5]}")
    if run.outcome != "finished":
        wrong.append(f"outcome {run.outcome!r}")
    return wrong


def _is_blamed(given_up: Sequence[int], to_blame: Sequence[int]) -> bool:
    """Whether exactly one of the machines to blame was given up, or none if none is to blame."""
    return len(given_up) == bool(to_blame) and set(given_up) <= set(to_blame)


def drill(machines: Machines, options: argparse.Namespace, steps: int, corpus: Path) -> int:
    """The run under faults, then the reference; returns 0 if nothing is wrong."""
    settings = (*SETTINGS, f"train.steps={steps}", f"data.path={corpus}")
    machines.run(CONFIG, "drilled", *settings)
    faults = Faults(machines, "drilled", options.seed)
    order = random.Random(options.seed)
    kinds = list(faults.kinds) * (options.faults // len(faults.kinds) + 1)
    # in a random order; how often two kinds are struck differs by one at most
    plan = order.sample(kinds[: options.faults], options.faults)
    rows = []
    for kind in plan if not options.only else [options.only] * options.faults:
        try:
            rows.append(strike(faults, kind))
        except TimeoutError:
            print(f"{kind}: {faults.status()}\n{faults.evidence()}", file=sys.stderr)
            raise
        print(json.dumps(rows[-1]), flush=True)
    print(f"all {len(rows)} recovered; at step {faults.newest()[1]} of {steps}", flush=True)
    digest = _to_end(machines, "drilled")
    machines.run(CONFIG, "reference", *settings)
    reference = _to_end(machines, "reference")
    wrong = judge(faults.run, rows, steps)
    if digest != reference:
        wrong.append(f"digest {digest} is not the undisturbed {reference}")
    result = {
        "command": f"python -m benchmarks.machines --faults {options.faults} --steps {steps} "
        f"--seed {options.seed}" + (f" --only {options.only!r}" if options.only else ""),
        "date": datetime.now(tz=UTC).date().isoformat(),
        "hardware": hardware(),
        "faults": rows,
        "steps": steps,
        "digests": [digest, reference],
        "wrong": wrong,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(wrong) or "nothing is wrong; the digests are equal")
    return int(bool(wrong))


def _to_end(machines: Machines, name: str) -> str:
    run = Run(machines.runs / name)
    until(lambda: run.outcome != "", 3600.0, f"{name} does not end", every_s=0.5)
    until(lambda: not machines.bed.node(0).processes(), 60.0, "processes are left", every_s=0.5)
    return final_digest(run)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if all recovered and the digests are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--only", metavar="KIND", help="strike this one each time")
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
            return drill(machines, options, steps, corpus)


if __name__ == "__main__":
    sys.exit(main())
