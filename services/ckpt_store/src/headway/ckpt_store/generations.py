"""Numbers the history in which a start of a job saves.

A start that restored a step continues its history; if later steps of that history are in the
folder, it begins a new generation at the restored step, which makes them obsolete. A start that
restored nothing begins one from scratch: whatever earlier starts left is obsolete from its first
complete checkpoint on, whatever the step numbers are.

Every rank of the start must arrive at the same number, whether or not another one has recorded it
already; so it is computed from a single listing.

Open clients of one process that save as one rank are of one start: what the first of them has
chosen holds for those that restore nothing.
"""

from __future__ import annotations

import contextlib
import weakref
from pathlib import Path

from headway.ckpt_store.files import Files
from headway.ckpt_store.folder import FolderView, is_superseded, look, mark_generation
from headway.ckpt_store.manifest import mark_name

SCRATCH = -1
"""The step from which a start continues that has restored none."""

_open: weakref.WeakValueDictionary[tuple[Path, str], Generations] = weakref.WeakValueDictionary()
"""Those of this process that have chosen, by folder and owner."""


class Generations:
    """The generation that one client saves in. ``number`` holds after ``choose``."""

    def __init__(self, files: Files, checkpoints: Path) -> None:
        self._files, self._checkpoints = files, checkpoints
        self._key = checkpoints, files.owner
        self.number = 0
        self.is_chosen = False
        self._restart: int | None = None
        self._abandoned: frozenset[int] = frozenset()

    def choose(self, step: int) -> None:
        """Continue from ``step``, or from ``SCRATCH``; writes nothing, see ``record``."""
        first = _open.setdefault(self._key, self)
        if step == SCRATCH and first is not self:
            self.number, self.is_chosen = first.number, True
            return
        view = look(self._checkpoints)
        has_later = any(
            a.is_complete and a.step > step and not is_superseded(*a.key, view.marks)
            for a in view.attempts
        )
        newest = _newest(view)
        if step == SCRATCH:
            # One that began from scratch and ended before its first checkpoint left its number.
            self.number = max(view.pending, default=newest + has_later)
            self._abandoned = frozenset()
        else:
            self.number = newest + has_later
            self._abandoned = view.pending
        self._restart = step if has_later else None
        self.is_chosen = True

    def record(self) -> None:
        """Write down that later steps are obsolete, once. Raises OSError."""
        still = self._abandoned and self._abandoned & look(self._checkpoints).pending
        for generation in still:
            with contextlib.suppress(FileNotFoundError):  # another rank was faster
                self._files.remove(self._checkpoints / mark_name(generation))
        self._abandoned = frozenset()
        if self._restart is not None:
            mark_generation(self._checkpoints, self.number, self._restart, self._files)
            self._restart = None

    def close(self) -> None:
        """Later clients of this process do not continue in it."""
        if _open.get(self._key) is self:
            del _open[self._key]


def obsolete(checkpoints: Path, step: int, generation: int) -> str:
    """Why a checkpoint would never be restored; empty if it would, or if the folder is unseen."""
    with contextlib.suppress(OSError):
        if is_superseded(step, generation, look(checkpoints).marks):
            return (
                f"step {step} would be obsolete: a later start saves in {checkpoints}; end one of "
                "the two, or give each a folder of its own"
            )
    return ""


def _newest(view: FolderView) -> int:
    return max([0, *view.marks, *(a.generation for a in view.attempts if a.is_complete)])
