"""Slurm's own programs, replaced by ones that print recorded answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what a program prints: ``slurm("squeue", "out", err="", code=0)``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def program(name: str, out: str = "", *, err: str = "", code: int = 0, text: str = "") -> None:
        file = folder / name
        body = text or f"cat <<'END'\n{out}\nEND\necho {err!r} >&2\nexit {code}"
        file.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/asked\n{body}\n')
        file.chmod(0o755)

    program("scancel"), program("squeue"), program("sbatch", "8")
    program("scontrol", text='echo "$3" | tr , "\\n"')
    return program
