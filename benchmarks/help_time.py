"""How long does each command take to print its help? Median of 5 starts, in seconds, as JSON.

``python -m benchmarks.help_time --out benchmarks/results/help_time.json``
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 0.3
COMMANDS = {
    "headway": [str(Path(sys.executable).with_name("headway"))],
    **{
        f"python -m headway.{name}": [sys.executable, "-m", f"headway.{name}"]
        for name in ("dataloader", "ckpt_store", "health", "trainer")
    },
}


def measure(command: list[str], num_starts: int) -> list[float]:
    """Wall seconds of each start, after one that is not counted (it fills the page cache)."""
    spans = []
    for _ in range(num_starts + 1):
        begun = time.perf_counter()
        subprocess.run([*command, "--help"], check=True, stdout=subprocess.DEVNULL)
        spans.append(time.perf_counter() - begun)
    return spans[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--starts", type=int, default=5)
    options = parser.parse_args()
    spans = {name: measure(command, options.starts) for name, command in COMMANDS.items()}
    result = {
        "unit": "s", "limit": LIMIT_S, "starts": options.starts, "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)), "load_1m": round(os.getloadavg()[0], 2),
        "commands": {name: {"median": round(statistics.median(s), 4), "all": [round(x, 4) for x in s]}
                     for name, s in spans.items()},
    }  # fmt: skip
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, row in result["commands"].items():
        print(f"{name + ' --help':<38} {row['median']:.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
