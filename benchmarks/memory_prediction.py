"""Predicted against measured memory of every rank, over a dozen layouts in processes of their own.

    python -m benchmarks.memory_prediction [--out FILE] [NAME...]

Each rank is a process with gloo groups, one thread and synthetic data. It trains ``STEPS`` steps
and prints its peak; the table has the rank of each layout that differs most from its prediction.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from headway.common.config import from_dict
from headway.common.plan.memory import predict
from headway.trainer.config import RunConfig
from headway.trainer.config.memory import memory_shape

from benchmarks.report import parser, write
from benchmarks.train.sides import Spec, team
from benchmarks.train.turns import Turns
from benchmarks.train.worker import Job

STEPS = 3
MODEL = {"layers": 8, "hidden": 256, "heads": 4, "vocab_size": 8192, "seq_len": 256}
MIB = 1 << 20
EXACT_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "2"}
"""glibc returns every large tensor at once; by default it keeps freed ones for the next, in pieces
that may not fit (docs/howto/memory.md)."""


@dataclass(frozen=True)
class Layout:
    """One run: what differs from one rank with the serial block in fp32."""

    name: str
    micro_batches: int = 2
    size: int = 8
    model: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        parallel = {"tp": 1, "pp": 1, "dp": 1, **self.parallel}
        dp = parallel["dp"]
        world = parallel["tp"] * parallel["pp"] * dp
        train = {
            "steps": STEPS,
            "micro_batch_size": self.size,
            "global_batch_size": self.size * self.micro_batches * dp,
            "dtype": "fp32",
            "device": "cpu",
            "eval_batches": 1,
            "sample_tokens": 0,
            **self.train,
        }
        tables = {"model": {**MODEL, **self.model}, "parallel": parallel, "train": train}
        return from_dict(RunConfig, {**tables, "launch": {"ranks_per_node": world}})


LAYOUTS = (
    Layout("serial"),
    Layout("parallel", model={"block": "parallel"}),
    Layout("serial-bf16", size=16, train={"dtype": "bf16"}),
    Layout("parallel-bf16", size=16, model={"block": "parallel"}, train={"dtype": "bf16"}),
    Layout("selective", size=12, train={"recompute": "selective"}),
    Layout("full", size=24, train={"recompute": "full"}),
    Layout("half-full", train={"recompute": "full", "recompute_layers": [0, 1, 2, 3]}),
    Layout("tp2", size=12, parallel={"tp": 2}),
    Layout("dp2", parallel={"dp": 2}),
    Layout("pp2-1f1b", 4, parallel={"pp": 2}),
    Layout("pp2-gpipe", 4, size=6, parallel={"pp": 2, "schedule": "gpipe"}),
    Layout("pp2-zb-h1", 4, parallel={"pp": 2, "schedule": "zb-h1"}),
    Layout("pp2-zb-v", 4, parallel={"pp": 2, "schedule": "zb-v"}),
    Layout("gpt2", model={"preset": "gpt2"}),
    Layout("llama", model={"preset": "llama", "kv_heads": 2}),
    Layout("qwen3-bf16", size=16, model={"preset": "qwen3"}, train={"dtype": "bf16"}),
    Layout(
        "tp2-selective-bf16",
        size=32,
        parallel={"tp": 2},
        train={"dtype": "bf16", "recompute": "selective"},
    ),
)


def measure(layout: Layout) -> list[dict[str, Any]]:
    """Run every rank of ``layout``; its predicted parts, measured bytes and CPU seconds."""
    world = layout.config.parallel.world_size
    spec = Spec(layout.name, "benchmarks.memory_prediction:train", {}, world, options=vars(layout))
    with patch.dict(os.environ, EXACT_ALLOCATOR), team(spec) as ranks:
        return ranks.turn(1).facts


def train(job: Job, turns: Turns) -> None:
    """One rank, in a process of its own: all steps are its one turn."""
    import torch
    from headway.testkit.trainer.pool import WorkerContext
    from headway.testkit.trainer.synthetic import synthetic
    from headway.testkit.trainer.training import build_groups
    from headway.trainer.session.hooks import StepHooks, StepResult
    from headway.trainer.session.session import Session
    from headway.trainer.worker.memory import MemoryMeter

    config = Layout(**job.options).config

    def all_steps(_: int) -> None:
        groups = build_groups(WorkerContext(), config, job.rank, 0, job.folder)
        meter, cpu_s = MemoryMeter(torch.device("cpu")), list[float]()

        class Hooks(StepHooks):
            def on_step(self, result: StepResult) -> None:
                if result.step == 0:
                    meter.restart()
                cpu_s.append(time.process_time())

        session = Session(config, job.rank, data_factory=synthetic(config, job.rank))
        session.join(groups)
        session.load("init")
        session.run(Hooks(), until=STEPS)
        peak = meter.peak()
        session.leave()
        memory = predict(memory_shape(config), config.parallel.grid.coordinates(job.rank).pp)
        turns.facts = {
            "rank": job.rank,
            "predicted": memory.total,
            "measured": peak,
            "parts": memory.parts(),
            "cpu_s_per_step": (cpu_s[-1] - cpu_s[0]) / (STEPS - 1),
        }

    turns.play(lambda: all_steps)


def main(arguments: list[str] | None = None) -> int:
    """Measure the layouts that are named, all by default."""
    known = parser(__doc__)
    known.add_argument("names", nargs="*")
    options = known.parse_args(arguments)
    chosen = [layout for layout in LAYOUTS if not options.names or layout.name in options.names]
    found = {}
    for layout in chosen:
        found[layout.name] = measure(layout)
        for row in found[layout.name]:
            off = row["predicted"] / row["measured"] - 1
            print(
                f"{layout.name:20} rank {row['rank']}  predicted {row['predicted'] / MIB:7.1f}  "
                f"measured {row['measured'] / MIB:7.1f} MiB  {off:+6.1%}  "
                f"{row['cpu_s_per_step']:.2f} CPU s/step",
                flush=True,
            )
    write(options.out, layouts=found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
