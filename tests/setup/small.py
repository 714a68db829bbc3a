"""Sets up one part with small dependencies: ``small.py FOLDER run|lab``, in a copy of the checkout.

It is the set-up itself; its tests are about the way. Only the first virtual environment of a Python
is made, with uv in it. It is kept in FOLDER, and later ones at the same path are copies of it: 10 s
of CPU less.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, "infra/setup")
import environment
import install
import packages

KEPT = Path(sys.argv[1], f"venv of Python {sys.version_info[0]}.{sys.version_info[1]}")
run, make_uv = environment.run, packages.make_uv
made: list[Path] = []
"""The environment that this process made and did not copy."""


def make_or_copy(command: list[str], what: str, env: Any = None) -> None:
    """``python -m venv``, or what it has made before."""
    if KEPT.exists():
        shutil.copytree(KEPT, command[-1], symlinks=True, dirs_exist_ok=True)
        return
    run(command, what, env)
    made.append(Path(command[-1]))


def make_uv_and_keep(venv: Path) -> None:
    """Install uv where it is missing; keep a new environment."""
    make_uv(venv)
    if venv in made:
        scratch = KEPT.with_name(f"{KEPT.name} {os.getpid()}")
        ignore = shutil.ignore_patterns(f"{environment.RECORD}*")
        shutil.copytree(venv, scratch, symlinks=True, ignore=ignore)
        scratch.rename(KEPT)


environment.run, packages.make_uv = make_or_copy, make_uv_and_keep
install.SETS = {"run": ["./libs/common"], "lab": ["./libs/launch"], "test": []}
sys.exit(install.main(sys.argv[2]))
