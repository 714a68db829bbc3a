"""The virtual environment: what the last set-up left in it, whether it can be used, making it.

``.headway.json`` in it is the record of the last set-up. An environment that the set-up did not
make is never cleared: it may hold what its owner needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ((3, 11), (3, 13))
"""First and last supported version; ``requires-python`` of every part says the same."""
RECORD = ".headway.json"
FORMER_RECORD = ".headway"
"""What the set-up with make and pip left, until version 0.1.0."""
PROBE = (
    "import sys, importlib.util as i; i.find_spec('pip') or sys.exit(1);"
    "print(*sys.version_info[:2], sys.base_prefix)"
)


class SetupError(Exception):
    """What keeps the set-up from working, with what to do about it, in one line."""


@dataclass(frozen=True)
class Record:
    """What is installed in an environment."""

    path: str = ""
    """Where it was made: its scripts name their interpreter by that path."""
    torch: str = "auto"
    """The build of torch that was asked for."""
    inputs: str = ""
    """Digest of everything that decides what is installed."""
    set: str = ""
    """Name of the set; empty while packages are changed, so a killed installation leaves it so."""
    is_ours: bool = False
    """Whether the set-up made the environment and so may clear it."""

    @classmethod
    def read(cls, venv: Path) -> Record | None:
        """None where there is none that this version understands."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            return cls(**json.loads((venv / RECORD).read_text()))
        return None

    def write(self, venv: Path) -> None:
        scratch = venv / f"{RECORD}.new"
        scratch.write_text(json.dumps(asdict(self)) + "\n")
        scratch.replace(venv / RECORD)


def problem(venv: Path, torch: str) -> str:
    """What keeps this virtual environment from being used; empty if nothing does."""
    python = [str(venv / "bin/python"), "-c", PROBE]
    try:
        done = subprocess.run(python, capture_output=True, text=True, check=False)
    except OSError:
        return "has no working Python"
    if done.returncode:
        return "has no pip"
    major, minor, base = done.stdout.strip().split(" ", 2)
    version = (int(major), int(minor))
    if not PYTHONS[0] <= version <= PYTHONS[1]:
        return f"uses Python {_text(version)}"
    is_asked_for = (version, base) == (sys.version_info[:2], sys.base_prefix)
    if os.environ.get("PYTHON") and not is_asked_for:
        return f"uses Python {_text(version)}, not the requested one"
    found = Record.read(venv)
    if found is None:
        return ""
    if found.path != str(venv):
        return "was created at another path"
    if not found.set:
        return "is only partly installed"
    if found.torch != torch:
        return f"was set up with TORCH={found.torch}"
    return ""


def make(venv: Path, record: Record) -> Record:
    """Make the environment, or make it anew where it cannot be used; returns its record."""
    if venv.is_file():
        raise SetupError(f"{venv} is a file; set VENV= to a folder")
    found = Record.read(venv)
    is_there = venv.exists() and any(venv.iterdir())
    if is_there and found is None and not (venv / "pyvenv.cfg").exists():
        raise SetupError(f"{venv} is not a virtual environment; move it away, or set VENV=")
    trouble = problem(venv, record.torch) if is_there else "is absent"
    is_ours = found.is_ours if found is not None else (venv / FORMER_RECORD).exists()
    if not trouble:
        return replace(record, is_ours=is_ours)
    if is_there and not is_ours:
        raise SetupError(f"{venv} {trouble}; remove it, or set VENV=")
    _check_c_library()
    reason = f": the existing one {trouble}" if is_there else ""
    print(f"creating {venv.name} with Python {_text(sys.version_info[:3])}{reason}", flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    venv.mkdir(parents=True, exist_ok=True)
    record = replace(record, is_ours=True)
    record.write(venv)  # first: what a kill leaves from here on is known as ours
    run([sys.executable, "-m", "venv", str(venv)], f"cannot create {venv}")
    return record


def _check_c_library() -> None:
    try:
        os.confstr("CS_GNU_LIBC_VERSION")
    except ValueError:
        raise SetupError("glibc is required; torch has no packages for other C libraries") from None


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def run(command: list[str], what: str, env: dict[str, str] | None = None) -> None:
    """Run a command quietly; its last words become the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise SetupError(f"{what}: {words[-1] if words else f'code {done.returncode}'}")
