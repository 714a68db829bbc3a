"""Run checkov with the words given, in an environment that uv keeps for it.

It pins what Headway needs in other versions, so it has no place in ``.venv``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import packages
from environment import ROOT

VERSION, NEWEST = "3.3.30", "2026-11-28"
"""The version, and the day after which no version of what it needs is taken."""


def main(words: list[str]) -> int:
    """Run checkov; returns its exit code."""
    venv = Path(os.environ.get("VENV") or ROOT / ".venv").absolute()
    uv = venv / "bin/uv"
    if not uv.exists():
        print(f"headway: {venv} has no uv; run `make setup-test`", file=sys.stderr)
        return 2
    run = [str(uv), "tool", "run", "--python", str(venv / "bin/python"), "--exclude-newer", NEWEST]
    run += ["--from", f"checkov=={VERSION}", "checkov", *words]
    return subprocess.run(run, env=packages.environment_for_uv(venv), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
