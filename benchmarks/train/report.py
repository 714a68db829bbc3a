"""What every module of the comparison shares: options, JSON, and lines on the screen."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.train import machine
from benchmarks.train.rounds import Plan

RESULTS = Path(__file__).resolve().parents[1] / "results"


class Options(argparse.Namespace):
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
    settings: list[str]
    peers: str

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
    add = parser.add_argument
    add("--rounds", type=int, default=rounds, help="interleaved rounds")
    add("--steps", type=int, default=steps, help="steps of one turn")
    add("--only", default="", help="rows whose name contains this")
    add("--out", type=Path, default=RESULTS / f"train_{module}.json")
    add("--tiny", action="store_true", help="a tiny model: does it still run?")
    add("--no-compile", action="store_false", dest="compiles", help="no compiled variants")
    add("--dtype", choices=["auto", "bf16", "fp32"], default="auto")
    add("--set", action="append", default=[], dest="settings", help="table.key=value, of our runs")
    add("--peers", default="", help="Python of the venv that `outside` made")
    options = parser.parse_args(argv, Options(module=module, began_s=time.monotonic()))
    if options.dtype == "auto":
        options.dtype = machine.fastest_dtype()
    return options


def measure(
    options: Options, makers: Mapping[str, Callable[[Path], Any]], rows: dict[str, Any], **more: Any
) -> int:
    """Add each row that ``--only`` leaves in, and write them so far: an interrupted comparison
    keeps what it has. Makers get a folder for weights. Returns what ``write`` does."""
    with tempfile.TemporaryDirectory() as folder:
        for name, make in makers.items():
            if options.wants(name):
                print(name, file=sys.stderr, flush=True)
                rows[name] = make(Path(folder))
                write(options, rows, **more)
    return write(options, rows, **more)


def write(options: Options, rows: Mapping[str, Any], **more: Any) -> int:
    """Write the module's JSON and print its rows; 1 if our side of a row failed."""
    took_s = round(time.monotonic() - options.began_s, 1)
    facts = {"machine": machine.facts(), "dtype": options.dtype, "duration_s": took_s, **more}
    report.write(options.out, **facts, rows=rows)
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
    if "hidden_percent" in found:
        words.append(f"{found['hidden_percent']} % hidden")
    if "tokens_per_gb" in found:
        words.append(f"{found['peak_mib']} MiB, {found['tokens_per_gb']:,.0f} tokens per GB")
    return ", ".join([*words, found.get("variant", "")])
