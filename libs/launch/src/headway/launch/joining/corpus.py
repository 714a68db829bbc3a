"""Sees to it early that a machine has the run's corpus, so that no rank fails later."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.files import files_below

COPY = "copy it there, or set data.path to a folder that all machines see"
START_LIMIT_S = 45.0
"""Of a preparation while a node starts, as of one that lost its disk: less than engines wait."""


@dataclass(frozen=True)
class Corpus:
    """What each machine of a run must have."""

    path: str = ""
    """Of the prepared folder on each machine, or prefix of a Megatron ``.bin``/``.idx`` pair."""
    digest: str = ""
    """See ``listing_digest``; empty: not checked."""
    recipe: tuple[str, ...] = ()
    """Arguments of ``headway data prepare`` that make it; empty: a machine cannot prepare it."""


def listing_digest(path: Path) -> str:
    """SHA-256 over names and sizes of a corpus's files.

    Cheap at any size. The ranks compare the content's own fingerprint when they open it.

    Args:
        path: as ``Corpus.path``.

    Raises:
        InputError: there is none. OSError: it cannot be read.
    """
    files = _files(path)
    if not files:
        raise InputError(f"this machine has no corpus in {path}", remedy=COPY)
    root = path if path.is_dir() else path.parent
    lines = [f"{file.relative_to(root)} {file.stat().st_size}\n" for file in sorted(files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def provide(corpus: Corpus, limit_s: float = START_LIMIT_S) -> None:
    """Prepare the corpus if it is absent and the run says how, and compare it with the run's.

    Raises:
        InputError: it is absent and cannot be prepared within ``limit_s``, or its files differ from
            the run's.
        OSError: it cannot be read.
    """
    if not corpus.digest:
        return
    path = Path(corpus.path)
    is_new = bool(corpus.recipe) and not path.exists()
    if is_new:
        _prepare(path, corpus.recipe, limit_s)
    if listing_digest(path) == corpus.digest:
        return
    if is_new:
        shutil.rmtree(path, ignore_errors=True)
        raise InputError(
            f"what this machine prepares as {path} differs from the run's corpus",
            remedy="use the same texts and, for stdlib, the same Python on all machines, or copy "
            "the prepared folder there",
        )
    raise InputError(
        f"{path} on this machine differs from the run's corpus",
        remedy="copy the same prepared corpus to each machine, or use a shared folder",
    )


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return files_below(path)
    prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    pair = [prefix.with_name(prefix.name + ending) for ending in (".bin", ".idx")]
    return pair if all(file.exists() for file in pair) else []


def _prepare(path: Path, recipe: tuple[str, ...], limit_s: float) -> None:
    """Several nodes that share a disk may do this at once: then one works and the others wait."""
    print(f"preparing the corpus {path}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "headway.dataloader", "prepare", *recipe, "--out", str(path)]
    reason = ""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        reason = f"it takes more than {limit_s:g} s"
    else:
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            reason = lines[-1].removeprefix("error: ") if lines else f"exit code {done.returncode}"
    if reason:
        raise InputError(
            f"this machine has no corpus in {path} and cannot prepare it: {reason}", remedy=COPY
        )
