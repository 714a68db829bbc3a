"""AdamW and LAMB at one, two and four times the batch, over the same samples.

    python -m benchmarks.lamb [--samples N] [--optimizer lamb] [--out FILE]

One process trains a small model on the source of Python's standard library (``headway data
prepare`` makes the corpus) once for each optimizer, batch and learning rate of its list. All runs
read the same samples, so a larger batch makes fewer updates. The table has the lowest validation
loss of each list, and its rate; a best rate at the end of its list is marked, because a better one
may lie beyond it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from headway.common.config import from_dict
from headway.dataloader.client import DataClient
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import Split
from headway.trainer.session.hooks import StepHooks
from headway.trainer.session.session import Session
from headway.trainer.worker.node_resources import replica_stream

from benchmarks.report import parser, write

BASE, FACTORS = 16, (1, 2, 4)
SAMPLES = 12_800
"""1.6M tokens; 800, 400 and 200 updates."""
EVAL_SAMPLES, EVALUATIONS = 256, 8
RATES = {"adamw": (1e-3, 2e-3, 4e-3, 8e-3), "lamb": (1e-2, 2e-2, 4e-2, 8e-2)}
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "vocab_size": 8192, "seq_len": 128}


class Evaluations(StepHooks):
    """Keeps the validation losses."""

    def __init__(self) -> None:
        self.curve: list[tuple[int, float]] = []

    def on_eval(self, step: int, loss: float, sequence: int = 0) -> None:
        """After ``step`` updates."""
        del sequence
        self.curve.append((step, round(loss, 4)))


def configuration(optimizer: str, batch: int, lr: float, samples: int, data: str) -> RunConfig:
    """One run; the warm-up and the validation data are the same share for every batch."""
    steps = samples // batch
    train = {
        "steps": steps,
        "global_batch_size": batch,
        "micro_batch_size": BASE,
        "dtype": "fp32",
        "device": "cpu",
        "eval_batches": EVAL_SAMPLES // batch,
        "eval_every": steps // EVALUATIONS,
        "sample_tokens": 0,
    }
    optim = {"name": optimizer, "lr": lr, "min_lr": lr / 10, "warmup_steps": steps // 20}
    tables: dict[str, Any] = {"model": MODEL, "train": train, "optim": optim}
    launch = {"nodes": 1, "ranks_per_node": 1}
    return from_dict(RunConfig, {**tables, "launch": launch, "data": {"path": data}})


def losses(config: RunConfig) -> list[tuple[int, float]]:
    """(updates, validation loss) before the first and after the last step and between, nats per
    token; not finite if it diverged."""

    def data(split: Split, start: int, generation: int, fingerprint: str) -> DataClient:
        spec = replica_stream(config, split, start, generation, 0, 1, fingerprint)
        return DataClient(None, spec=spec, copy=False)

    session, hooks = Session(config, 0, data_factory=data), Evaluations()
    session.join(Groups.alone())
    try:
        session.load("init")
        session.run(hooks)
    finally:
        session.leave()
        session.close()
    return hooks.curve


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, print a line for each and the table."""
    known = parser(__doc__)
    known.add_argument("--samples", type=int, default=SAMPLES)
    known.add_argument("--data", default="data/stdlib", help="a prepared folder")
    known.add_argument("--threads", type=int, default=1)
    known.add_argument("--optimizer", choices=[*RATES], help="leave the other one out")
    options = known.parse_args(arguments)
    torch.set_num_threads(options.threads)
    rows, table = list[dict[str, Any]](), ["optimizer  batch  best lr  validation loss"]
    lists = {name: r for name, r in RATES.items() if options.optimizer in (None, name)}
    for optimizer, rates in lists.items():
        for batch in (BASE * factor for factor in FACTORS):
            found = []
            for lr in rates:
                config = configuration(optimizer, batch, lr, options.samples, options.data)
                began_s = time.monotonic()
                curve = [loss for _, loss in losses(config)]
                row = {"optimizer": optimizer, "batch": batch, "lr": lr, "loss": curve[-1]}
                took_s = round(time.monotonic() - began_s, 1)
                found.append({**row, "curve": curve, "duration_s": took_s})
                print(found[-1], flush=True)
            best = min(found, key=lambda row: row["loss"] if row["loss"] == row["loss"] else 1e9)
            mark = "  at the end of the list" if best["lr"] in (rates[0], rates[-1]) else ""
            table.append(f"{optimizer:9}  {batch:5}  {best['lr']:7g}  {best['loss']:.4f}{mark}")
            rows += found
    print("\n".join(table))
    write(options.out, samples=options.samples, rows=rows)


if __name__ == "__main__":
    main()
