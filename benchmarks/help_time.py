"""How long does each command take to print its help? Median of 5 starts, in seconds, as JSON.

The five command lines, and every command of ``headway``, those of the services too.

``python -m benchmarks.help_time --out benchmarks/results/help_time.json``
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


def measure(command: list[str], num_starts: int) -> list[tuple[float, float]]:
    """(wall, processor) seconds of each start,
    after one that is not counted (it fills the page cache).

    On a busy machine only the second figure means something.
    """
    spans = []
    for _ in range(num_starts + 1):
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([*command, "--help"], check=True, stdout=subprocess.DEVNULL)
        wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        spans.append((wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return spans[1:]


def row(spans: list[tuple[float, float]]) -> dict[str, object]:
    """Medians, and every wall time."""
    wall, processor = ([span[k] for span in spans] for k in (0, 1))
    return {
        "median": round(statistics.median(wall), 4),
        "median_cpu": round(statistics.median(processor), 4),
        "all": [round(span, 4) for span in wall],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "unit": "s", "limit": LIMIT_S, "starts": options.starts,
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)), "load_1m": round(os.getloadavg()[0], 2),
        "commands": {name: row(measure(command, options.starts)) for name,
                     command in (COMMANDS | subcommands()).items()},
    }  # fmt: skip
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, facts in result["commands"].items():
        print(
            f"{name + ' --help':<38} {facts['median']:.3f} s, {facts['median_cpu']:.3f} s of a "
            f"processor"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
