"""How long does each command take to print its help? Median of 5 starts, in seconds, as JSON.

The five command lines, and every command of ``headway``, those of the services too.

``python -m benchmarks.help_time --out benchmarks/results/help_time.json``
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.report import parser, write

LIMIT_S = 0.3
HEADWAY = str(Path(sys.executable).with_name("headway"))
COMMANDS = {
    "headway": [HEADWAY],
    **{
        f"python -m headway.{name}": [sys.executable, "-m", f"headway.{name}"]
        for name in ("dataloader", "ckpt_store", "health", "trainer", "controller")
    },
}


def subcommands(group: Any = None, path: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Every command below ``headway``."""
    from headway.console.cli import app
    from typer.main import get_command

    group, found = group or get_command(app), {}
    for name in group.list_commands(None):
        words, command = (*path, name), group.get_command(None, name)
        found[" ".join(("headway", *words))] = [HEADWAY, *words]
        if hasattr(command, "list_commands"):
            found |= subcommands(command, words)
    return found


def measure(command: list[str], num_starts: int) -> dict[str, Any]:
    """Median wall and processor seconds of a start, and every wall time, after one that is not
    counted (it fills the page cache).

    On a busy machine only the processor's time means something.
    """
    wall, processor = [], []
    for _ in range(num_starts + 1):
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([*command, "--help"], check=True, stdout=subprocess.DEVNULL)
        wall.append(time.perf_counter() - begun)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {
        "median": round(statistics.median(wall[1:]), 4),
        "median_cpu": round(statistics.median(processor[1:]), 4),
        "all": [round(span, 4) for span in wall[1:]],
    }


def main() -> int:
    """Measure every command, one after the other."""
    options = parser(__doc__)
    options.add_argument("--starts", type=int, default=5)
    given = options.parse_args()
    rows = {name: measure(words, given.starts)
            for name, words in (COMMANDS | subcommands()).items()}  # fmt: skip
    write(given.out, unit="s", limit=LIMIT_S, starts=given.starts, commands=rows)
    for name, facts in rows.items():
        spans = f"{facts['median']:.3f} s, {facts['median_cpu']:.3f} s of a processor"
        print(f"{name + ' --help':<38} {spans}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
