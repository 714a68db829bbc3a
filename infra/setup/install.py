"""Install a set of Headway's parts into ``.venv``: ``install.py run``, ``lab`` or ``test``.

``setup.sh`` calls it. uv does the installing; it is itself pinned and lives in the virtual
environment. What pip is configured to use (indexes, certificates, proxy) holds for uv too.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import environment
import packages
from environment import ROOT, Record, SetupError

SETS = {
    "run": [
        "./libs/common",
        "./libs/launch",
        "./services/dataloader",
        "./services/ckpt_store",
        "./services/health[store]",
        "./services/trainer[compute]",
        "./services/controller",
        "./console[local]",
    ],
    "lab": ["./console[notebooks]"],
    "test": ["./libs/testkit[browser,exchange]", "./console[tensorboard,wandb]"],
}
"""Parts by set, installed editable; each set holds those before it too."""
GPU_PARTS = ["./services/health[gpu]"]
DEV_GROUP = ["--group", "pyproject.toml:dev"]


def main(wanted: str) -> int:
    """Bring ``.venv`` to the set ``wanted``, unless it is there already; returns the exit code."""
    venv = Path(os.environ.get("VENV") or ROOT / ".venv").absolute()
    try:
        with _setup_lock():
            _install(venv, wanted)
    except SetupError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("headway: interrupted; run the same command to continue", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"headway: set-up failed: {error}", file=sys.stderr)
        return 1
    return 0


def _install(venv: Path, wanted: str) -> None:
    found = Record.read(venv) or Record()
    torch = _torch(found)
    record = Record(path=str(venv), torch=torch, inputs=_inputs())
    is_current = found.inputs == record.inputs and not environment.problem(venv, torch)
    if is_current and found.set in _sets_from(wanted):
        return
    if found.set in SETS:
        wanted = max(wanted, found.set, key=list(SETS).index)
        if torch not in ("auto", found.torch) and (venv / "bin/uv").exists():
            packages.check_torch(venv, torch)
    record = environment.make(venv, record)
    packages.make_uv(venv)
    print(f"installing what `make {wanted}` needs", flush=True)
    there = found.set if is_current else ""
    packages.install(venv, _requirements(wanted, there), replace(record, set=wanted))


@contextlib.contextmanager
def _setup_lock() -> Iterator[None]:
    """One set-up of this checkout at a time: a second one waits, then finds its work done."""
    fd = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another set-up of this checkout", flush=True)
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _torch(found: Record) -> str:
    """Which build of torch: what TORCH says, else what was asked for the last time."""
    torch = os.environ.get("TORCH") or found.torch
    if not re.fullmatch(r"auto|cpu|xpu|cu\d+|rocm\d[\d.]*", torch):
        raise SetupError(
            f"TORCH={torch} is not a build of torch; use auto, cpu, cu130, rocm7.2 ..."
        )
    return torch


def _inputs() -> str:
    """A digest of everything that decides what is installed."""
    parts = dict.fromkeys(path.split("[")[0] for paths in SETS.values() for path in paths)
    files = [packages.LOCK, *sorted(Path(__file__).parent.glob("*.py")), ROOT / "pyproject.toml"]
    files += [ROOT / part / "pyproject.toml" for part in parts]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _requirements(wanted: str, there: str) -> list[str]:
    """Those of the set ``wanted``, where the set ``there`` is already in place ("" for none).

    A part that is in place is named, not given as a folder: uv would install that again, and a
    process of a live run that starts meanwhile would not find it.
    """
    in_place = {_folder(part) for part in _parts(there)} if there else set()
    parts = _parts(wanted) + (GPU_PARTS if packages.has_gpu() else [])
    words: list[str] = []
    for part in parts:
        words += [_named(part)] if _folder(part) in in_place else ["-e", part]
    return words + (DEV_GROUP if wanted == "test" else [])


def _parts(wanted: str) -> list[str]:
    return [part for name in SETS if name not in _sets_from(wanted)[1:] for part in SETS[name]]


def _folder(part: str) -> str:
    return part.partition("[")[0]


def _named(part: str) -> str:
    """``./services/ckpt_store[x]`` as ``headway-ckpt-store[x]``."""
    return f"headway-{part.rpartition('/')[2].replace('_', '-')}"


def _sets_from(name: str) -> list[str]:
    return list(SETS)[list(SETS).index(name) :]


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in SETS:
        sys.exit(f"usage: {Path(sys.argv[0]).name} {'|'.join(SETS)}")
    sys.exit(main(sys.argv[1]))
