"""``python -m benchmarks.train``: every module of the comparison that runs on CPUs, one by one.

Options are those of the modules (``--peers PYTHON``, ``--rounds``, ``--tiny`` ...), except
``--out``, which is the folder of the results.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.train.report import RESULTS

MODULES = ("executor", "overlap", "one_process", "several", "memory")


def main() -> int:
    """Run them in fresh processes; the number of modules that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--modules", default=",".join(MODULES))
    given, others = parser.parse_known_args()
    failed = 0
    for module in given.modules.split(","):
        began_s = time.monotonic()
        out = given.out / f"train_{module}.json"
        command = [sys.executable, "-m", f"benchmarks.train.{module}", "--out", str(out), *others]
        code = subprocess.run(command, check=False).returncode
        failed += code != 0
        print(f"{module}: {time.monotonic() - began_s:.0f} s, exit code {code}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
