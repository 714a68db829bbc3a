"""One GPU: ours and compiled plain torch, step by step in turns, with CUDA events.

    python -m benchmarks.train.gpu --plan                            # the commands, none run
    python -m benchmarks.train.gpu --shape 1.3b --seq 2048 --out $OUT/gpu_1.3b_2048.json

Plain torch is tuned: bf16 under autocast or as weights, compiled whole, fused AdamW, cuDNN's or
flash attention (``--attention cudnn,flash``), whichever is faster. Both sides live in this process
and take turns, so they share the GPU's clock and heat; if they do not fit together, they run one
after the other, and the result says so.

MFU is stated with causal and with full attention FLOPs, against the data sheet's peak and against
the best matrix product measured in the same run. Needs torch >= 2.11, numpy and triton; msgpack,
msgspec, structlog, tomli-w, xxhash and pyzmq may be wheels unpacked into a folder of
``PYTHONPATH``, next to the repository's root and every ``src``. Each command takes one model and
one length; ``--only headway`` or ``--only torch`` halves it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.train.gpu_bench import Bench, Make, peak_flops
from benchmarks.train.gpu_sides import OurSide, PlainSide
from benchmarks.train.rounds import ratios, summary
from benchmarks.train.shapes import SHAPES, Shape

SHEET_FLOPS = 989e12
"""Dense bf16 of an H100 or H200 SXM, from NVIDIA's data sheet."""
PLAN = [(name, seq) for name in ("0.4b", "1.3b", "3b") for seq in (2048, 4096)]
MICRO_TOKENS = {"0.4b": 32_768, "1.3b": 16_384, "3b": 8_192, "tiny": 64}
"""Tokens of a micro-batch to begin with; ``--micro`` replaces them."""
STEP_TOKENS = 131_072
PEAK_SIZE = 8192


def commands() -> list[str]:
    """One command of at most 10 minutes for each model and sequence length."""
    return [
        f"python -m benchmarks.train.gpu --shape {name} --seq {seq} "
        f"--out $OUT/gpu_{name}_{seq}.json"
        for name, seq in PLAN
    ]


def shape_of(name: str, seq: int, tokens: int) -> Shape:
    """The named model at a sequence length, with ``tokens`` per step."""
    return dataclasses.replace(SHAPES[name], seq=seq, batch=max(1, tokens // seq))


def figures(shape: Shape, seconds: Sequence[float], peak: float) -> dict[str, Any]:
    """Tokens per second and the four MFUs."""
    found = summary(seconds, shape.tokens)
    rate = shape.tokens / statistics.median(seconds)
    for name, causal in (("causal", True), ("full", False)):
        flops = rate * shape.flops_per_token(causal=causal)
        found[f"mfu_{name}_sheet"] = round(flops / SHEET_FLOPS, 4)
        found[f"mfu_{name}_measured"] = round(flops / peak, 4)
    return found


def measure(options: argparse.Namespace, shape: Shape, device: torch.device) -> dict[str, Any]:
    """Ours and the fastest plain variant, in turns; one after the other if both do not fit."""
    micro = options.micro or max(1, MICRO_TOKENS[options.shape] // shape.seq)
    micro = min(micro, shape.batch)
    bench = Bench(options, device)
    makers: dict[str, Make] = {}
    if options.only in "headway":
        makers["headway"] = lambda: OurSide(
            shape, micro, device, options.set, compiles=not options.no_compile
        )
    if options.only in "torch":
        plain: dict[str, Make] = {
            f"{precision}, {backend}": _plain(
                shape, micro, device, precision, backend, compiles=not options.no_compile
            )
            for precision in options.precisions.split(",")
            for backend in options.attention.split(",")
        }
        if variant := bench.fastest(plain):
            makers["torch"] = plain[variant]
    peak = peak_flops(device, 256 if device.type == "cpu" else PEAK_SIZE)
    is_interleaved = bench.run(makers) or all(bench.run({name: makers[name]}) for name in makers)
    sides = {
        name: figures(shape, seconds, peak) | bench.facts[name]
        for name, seconds in bench.times.items()
        if seconds
    }
    return {
        "micro": micro,
        "peak_flops": peak,
        "interleaved": is_interleaved and len(bench.runs) == 1,
        "tuning_s": bench.tuning,
        "failed": bench.failed,
        "sides": sides,
        "ratios": ratios(bench.times, "headway"),
    }


def _plain(shape: Shape, *given: Any, **how: Any) -> Make:
    return lambda: PlainSide(shape, *given, **how)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one model at one sequence length, or print the plan."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plan", action="store_true", help="print the commands and do nothing")
    parser.add_argument("--shape", choices=list(MICRO_TOKENS), default="0.4b")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=STEP_TOKENS, help="of one optimizer step")
    parser.add_argument("--micro", type=int, default=0, help="sequences of a micro-batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--precisions", default="autocast,pure")
    parser.add_argument("--attention", default="cudnn")
    parser.add_argument("--only", default="", help="sides whose name contains this")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="table.key=value of our run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    if options.plan:
        print("\n".join(commands()))
        return 0
    shape, device = (
        shape_of(options.shape, options.seq, options.tokens),
        torch.device(options.device),
    )
    row = measure(options, shape, device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    facts = {
        "command": "python -m benchmarks.train.gpu " + " ".join(argv or sys.argv[1:]),
        "machine": {"gpu": name, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")},
        "shape": shape.to_dict(),
        "parameters": shape.parameters,
        **row,
    }
    text = json.dumps(facts, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)
    return 0 if "headway" in row["sides"] or options.only else 1


if __name__ == "__main__":
    sys.exit(main())
