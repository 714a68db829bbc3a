"""The command line of a benchmark, and the file that it writes its result to."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headway.console.machine.peak import processor_name


def parser(doc: str | None, *, out: Path | None = None) -> argparse.ArgumentParser:
    """Options of a benchmark: the first line of its docstring for help, and ``--out FILE``."""
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    made.add_argument("--out", type=Path, default=out, metavar="FILE", help="JSON of the result")
    return made


def hardware() -> str:
    """Such as ``AMD EPYC, x86_64, 2 cores``."""
    return f"{processor_name('cpu')}, {platform.machine()}, {os.cpu_count()} cores"


def write(out: Path | None, **result: Any) -> None:
    """Write the result below the command, machine, versions, load and date; without ``out``
    nothing."""
    if out is None:
        return
    facts = {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load_1m": round(os.getloadavg()[0], 2),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(facts | result, indent=1, default=str) + "\n")


def finish(
    out: Path | None, failures: Sequence[str], good: str = "nothing is wrong", **result: Any
) -> int:
    """Write the result and what is wrong, and print that, or ``good``; returns the exit code: the
    number of failures, 125 at most."""
    write(out, **result, failures=failures)
    print("\n".join(f"FAILED {line}" for line in failures) or good)
    return min(len(failures), 125)
