"""Predicted against measured memory of every rank, over a dozen layouts in processes of their own.

    python -m benchmarks.memory_prediction [--json FILE] [NAME...]

Each rank is a process with gloo groups, one thread and synthetic data. It trains ``STEPS`` steps
and prints its peak; the table has the rank of each layout that differs most from its prediction.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.common.config import from_dict
from headway.common.plan.memory import predict
from headway.trainer.config import RunConfig
from headway.trainer.config.memory import memory_shape

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
    config = layout.config
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "layout.json"
        settings.write_text(json.dumps(layout.__dict__))
        command = [sys.executable, "-m", "benchmarks.memory_prediction", "--rank"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **EXACT_ALLOCATOR}
        ranks = [
            subprocess.Popen([*command, str(rank), str(settings)], stdout=subprocess.PIPE, env=env)
            for rank in range(config.parallel.world_size)
        ]
        return [json.loads(rank.communicate()[0]) for rank in ranks]


def one_rank(rank: int, settings: Path) -> dict[str, Any]:
    """Train as one rank and measure; in a process of its own."""
    import torch
    from headway.testkit.trainer.synthetic import synthetic
    from headway.trainer.comm.channel import Channels
    from headway.trainer.comm.groups import Groups, build
    from headway.trainer.comm.store import StoreEndpoint
    from headway.trainer.session.hooks import StepHooks, StepResult
    from headway.trainer.session.session import Session
    from headway.trainer.worker.memory import MemoryMeter

    torch.set_num_threads(1)
    config = Layout(**json.loads(settings.read_text())).config
    device, address = torch.device("cpu"), settings.with_suffix(".address")

    def announce(endpoint: StoreEndpoint) -> None:
        part = address.with_suffix(".part")
        part.write_text(json.dumps([endpoint.host, endpoint.port, endpoint.secret]))
        part.rename(address)

    def lookup() -> StoreEndpoint:
        while not address.exists():
            time.sleep(0.05)
        return StoreEndpoint(*json.loads(address.read_text()))

    groups = Groups.alone(0)
    if config.parallel.world_size > 1:
        groups = build(
            0,
            config.parallel.grid,
            rank,
            host="127.0.0.1",
            announce=announce,
            lookup=lookup,
            channels=Channels(),
            timeout_s=60.0,
            device=device,
        )
    meter = MemoryMeter(device)
    session = Session(config, rank, data_factory=synthetic(config, rank), device=device)
    session.join(groups)
    session.load("init")
    cpu_s = [time.process_time()]

    class Hooks(StepHooks):
        def on_step(self, result: StepResult) -> None:
            if result.step == 0:
                meter.restart()
            cpu_s.append(time.process_time())

    session.run(Hooks(), until=STEPS)
    peak = meter.peak()
    session.leave()
    memory = predict(memory_shape(config), config.parallel.grid.coordinates(rank).pp)
    return {
        "rank": rank,
        "predicted": memory.total,
        "measured": peak,
        "parts": memory.parts(),
        "cpu_s_per_step": (cpu_s[-1] - cpu_s[1]) / (STEPS - 1),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure the layouts that are named, all by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        print(json.dumps(one_rank(options.rank, Path(options.names[0]))))
        return 0
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
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
