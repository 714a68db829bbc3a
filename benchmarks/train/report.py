"""What every module of the comparison shares: options, JSON, and lines on the screen."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.train import machine
from benchmarks.train.rounds import Plan

RESULTS = Path(__file__).resolve().parents[1] / "results"


@dataclass(frozen=True)
class Options:
    """The command line of a module."""

    module: str
    rounds: int
    only: str
    out: Path
    tiny: bool
    compiles: bool
    steps: int
    dtype: str
    began_s: float
    command: str
    settings: tuple[str, ...] = ()
    peers: str = ""

    def wants(self, name: str) -> bool:
        """Whether ``--only`` leaves this row in."""
        return self.only in name

    @property
    def plan(self) -> Plan:
        """The rounds to measure."""
        if self.tiny:
            return Plan(self.rounds, steps=1, warmup=1, tuning=1)
        return Plan(self.rounds, self.steps)

    @property
    def is_narrow(self) -> bool:
        """Whether the compute type is bf16."""
        return self.dtype == "bf16"


def parse(argv: Sequence[str] | None, module: str, *, rounds: int = 7, steps: int = 2) -> Options:
    """The options that all modules take."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.train.{module}")
    parser.add_argument("--rounds", type=int, default=rounds, help="interleaved rounds")
    parser.add_argument("--steps", type=int, default=steps, help="steps of one turn")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS / f"train_{module}.json")
    parser.add_argument("--tiny", action="store_true", help="a tiny model: does it still run?")
    parser.add_argument("--no-compile", action="store_true", help="leave out compiled variants")
    parser.add_argument("--dtype", choices=["auto", "bf16", "fp32"], default="auto")
    parser.add_argument(
        "--set", action="append", default=[], help="table.key=value of every run of ours"
    )
    parser.add_argument("--peers", default="", help="Python of the venv that `peers` made")
    given = parser.parse_args(argv)
    words = sys.argv[1:] if argv is None else argv
    return Options(
        module=module,
        rounds=given.rounds,
        only=given.only,
        out=given.out,
        tiny=given.tiny,
        compiles=not given.no_compile,
        steps=given.steps,
        dtype=machine.fastest_dtype() if given.dtype == "auto" else given.dtype,
        began_s=time.monotonic(),
        command=" ".join([f"python -m benchmarks.train.{module}", *words]),
        settings=tuple(given.set),
        peers=given.peers,
    )


def write(options: Options, rows: Mapping[str, Any], **more: Any) -> int:
    """Write the module's JSON and print its rows; 1 if our side of a row failed."""
    facts = {
        "command": options.command,
        "machine": machine.facts(),
        "dtype": options.dtype,
        "duration_s": round(time.monotonic() - options.began_s, 1),
        **more,
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(facts, indent=1) + "\n")
    for name, row in rows.items():
        print(name)
        for side, found in row.get("sides", {}).items():
            print(f"  {side:12} {_line(found)}")
        for side, ratio in row.get("ratios", {}).items():
            print(f"  {side}'s time over ours: {ratio['median']:.2f} {ratio['rounds']}")
        for variant, error in row.get("failed", {}).items():
            print(f"  {variant} failed: {error[:150]}")
    missing = [name for name, row in rows.items() if "headway" not in row.get("sides", {})]
    return 1 if missing else 0


def _line(found: Mapping[str, Any]) -> str:
    words = []
    if "tokens_per_s" in found:
        words.append(f"{found['tokens_per_s']:,.0f} tokens/s")
    if "median_s" in found:
        words.append(f"{1e3 * found['median_s']:.1f} ms, spread {found['spread']:.0%}")
    if "over_theory_percent" in found:
        words.append(f"{found['over_theory_percent']} % over theory")
    if "tokens_per_gb" in found:
        words.append(f"{found['peak_mib']} MiB, {found['tokens_per_gb']:,.0f} tokens per GB")
    return ", ".join([*words, found.get("variant", "")])
