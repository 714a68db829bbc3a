"""Sees to it early that a machine has the run's corpus, so that no rank fails later."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.files import files_below
from headway.common.node.run_dir import ENV_NODE, ENV_RUN_ID

COPY = "copy it there, or set data.path to a folder that all machines see"
_READ = (".bin", ".idx")
_IDENTIFYING = ("corpus_sha256", "tokenizer_sha256", "splits")
START_LIMIT_S = 45.0
"""The limit of a preparation while a node starts, as of one that lost its disk.

It is less than engines wait.
"""


@dataclass(frozen=True)
class Corpus:
    """What each machine of a run must have."""

    path: str = ""
    """The prepared folder on each machine, or prefix of a Megatron ``.bin``/``.idx`` pair."""
    digest: str = ""
    """See ``digest_of``; empty: not checked."""
    recipe: tuple[str, ...] = ()
    """Arguments of ``headway data prepare`` that make it; empty: a machine cannot prepare it."""


def digest_of(path: Path) -> str:
    """Return the SHA-256 over what identifies a corpus.

    That is the digests in its ``meta.json``, and names and sizes of the files that ranks read.

    Cheap at any size. The ranks compare the content's own fingerprint when they open it.

    Args:
        path: as ``Corpus.path``.

    Raises:
        InputError: there is none, or its description is damaged. OSError: it cannot be read.
    """
    files = _files(path)
    if not files:
        raise InputError(f"this machine has no corpus in {path}", remedy=COPY)
    root = path if path.is_dir() else path.parent
    lines = [f"{file.relative_to(root)} {file.stat().st_size}" for file in sorted(files)]
    meta = path / "meta.json"
    if meta.exists():
        try:
            facts = json.loads(meta.read_text())
            lines += [json.dumps(facts[name], sort_keys=True) for name in _IDENTIFYING]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{meta} is damaged: {error}", remedy="copy it again") from error
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def provide(corpus: Corpus, run_id: str, node: int, limit_s: float = START_LIMIT_S) -> None:
    """Prepare the corpus if it is absent and the run says how, and compare it with the run's.

    Args:
        corpus: what the run has.
        run_id: with ``node``: a preparation is a process of this node, and ends with it.
        node: of the run.
        limit_s: of a preparation.

    Raises:
        InputError: it is absent and cannot be prepared within ``limit_s``, or it differs from the
            run's.
        OSError: it cannot be read.
    """
    path = Path(corpus.path)
    if not corpus.digest:
        return
    if corpus.recipe and not os.path.lexists(path):  # a link may lead to what is not mounted
        _prepare(corpus, path, {ENV_RUN_ID: run_id, ENV_NODE: str(node)}, limit_s)
    if digest_of(path) != corpus.digest:
        raise InputError(
            f"{path} on this machine differs from the run's corpus",
            remedy="copy the same prepared corpus to each machine, or use a shared folder",
        )


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return [file for file in files_below(path) if file.suffix in _READ]
    prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    pair = [prefix.with_name(prefix.name + ending) for ending in (".bin", ".idx")]
    return pair if all(file.exists() for file in pair) else []


def _prepare(corpus: Corpus, path: Path, owner: dict[str, str], limit_s: float) -> None:
    """Prepare the corpus next to the path, and move it there if the place is free.

    If another node that shares the disk, or a person, takes it meanwhile, nothing else matters.

    Raises: as ``provide``.
    """
    print(f"preparing the corpus {path}", file=sys.stderr, flush=True)
    draft = path.with_name(f".{path.name}.preparing")
    words = ["-m", "headway.dataloader", "prepare", *corpus.recipe, "--out", str(draft)]
    try:
        if reason := _failure_of([sys.executable, *words], owner, limit_s):
            raise InputError(
                f"this machine has no corpus in {path} and cannot prepare it: {reason}", remedy=COPY
            )
        if digest_of(draft) != corpus.digest:
            shutil.rmtree(draft, ignore_errors=True)
            raise InputError(
                f"what this machine prepares as {path} differs from the run's corpus",
                remedy="use the same texts and, for stdlib, the same Python on all machines, or "
                "copy the prepared folder there",
            )
        draft.rename(path)
    except (InputError, OSError):
        if not os.path.lexists(path):
            raise
        shutil.rmtree(draft, ignore_errors=True)


def _failure_of(command: list[str], owner: dict[str, str], limit_s: float) -> str:
    try:
        done = subprocess.run(
            command,
            env=os.environ | owner,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {limit_s:g} s"
    if done.returncode < 0:
        return f"it was killed by signal {-done.returncode}"
    lines = done.stderr.strip().splitlines() or [f"error: exit code {done.returncode}"]
    return lines[-1].removeprefix("error: ") if done.returncode else ""
