"""The driver's questions to the checkpoints folder, which may hang."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from headway.ckpt_store import complete, has_mark, look, newest
from headway.common.decide import Done, Failed
from headway.common.errors import CorruptError
from headway.common.log import get_logger
from headway.common.wire.side_thread import ThreadPerKind
from headway.controller.decisions.events import (
    AwaitCheckpoint,
    CheckCheckpoint,
    DurableFound,
    FindDurable,
    Input,
)

log = get_logger("driver")


class Checkpoints:
    """Asks on the background thread, and hands the answers to ``handle`` as events."""

    def __init__(
        self,
        folder: Path,
        world_size: int,
        background: ThreadPerKind,
        handle: Callable[[Input], None],
    ) -> None:
        self._folder, self._world_size = folder, world_size
        self._background, self._handle = background, handle

    def find(self, action: FindDurable) -> None:
        """The checkpoint that the next generation may restore."""

        def then(found: DurableFound | None, error: Exception | None) -> None:
            self._handle(found or DurableFound(None, str(error), action.only))

        work = functools.partial(search, self._folder, self._world_size, action)
        self._background.submit("look for the newest checkpoint", work, then)

    def check(self, action: CheckCheckpoint) -> None:
        """Whether every byte of a checkpoint is sound."""
        self._ask(action, "reading of a checkpoint", problem_of, action.step)

    def await_newer(self, action: AwaitCheckpoint) -> None:
        """Whether there is a later checkpoint."""
        self._ask(action, "look for a later checkpoint", lack_after, action.after)

    def _ask(
        self,
        action: CheckCheckpoint | AwaitCheckpoint,
        what: str,
        problem: Callable[[Path, int, int], str],
        step: int,
    ) -> None:
        def then(found: str | None, error: Exception | None) -> None:
            if error is None and not found:
                self._handle(Done(action))
            else:
                self._handle(Failed(action, found or str(error), is_final=error is None))

        work = functools.partial(problem, self._folder, self._world_size, step)
        self._background.submit(what, work, then)


def search(checkpoints: Path, world_size: int, action: FindDurable) -> DurableFound:
    """The newest complete checkpoint, or the one asked for, or what is wrong with the folder.

    A folder that holds neither a checkpoint nor the mark of the run's generation is another one: a
    mount that is missing, or one that somebody emptied. A run that took it for its own would start
    over.

    Raises:
        HeadwayError: none of the checkpoints can be read.
        OSError: the folder cannot be read.
    """
    if action.only >= 0:
        return DurableFound(_of_step(checkpoints, world_size, action), only=action.only)
    found = newest(checkpoints, world_size=world_size, without=action.bad)
    if found is not None:
        return DurableFound((found.step, str(found.path)))
    if action.marked >= 0 and not has_mark(checkpoints, action.marked):
        trouble = (
            f"{checkpoints} does not hold the record of generation {action.marked}: it is another "
            "folder, or it was emptied"
        )
        return DurableFound(None, trouble=trouble)
    return DurableFound(None)


def _of_step(checkpoints: Path, world_size: int, action: FindDurable) -> tuple[int, str] | None:
    """The complete checkpoint of ``action.only``, None without one or where it proved bad."""
    for info in complete(checkpoints):
        if (info.step, info.world_size) == (action.only, world_size):
            return None if info.step in action.bad else (info.step, str(info.path))
    return None


def newest_mark(checkpoints: Path) -> int:
    """The newest generation that the folder knows, -1 for none, and where it cannot be read."""
    try:
        return max(look(checkpoints).marks, default=-1)
    except (OSError, CorruptError) as error:
        log.error("the checkpoints folder cannot be read", reason=str(error))
        return -1


def problem_of(checkpoints: Path, world_size: int, step: int) -> str:
    """Why the checkpoint of ``step`` cannot be restored, empty if every byte of it is sound.

    Raises:
        OSError: the folder cannot be read now.
    """
    try:
        found = [info for info in complete(checkpoints) if info.step == step]
    except CorruptError as error:
        return error.message
    for info in found:
        if info.world_size != world_size:
            return f"checkpoint {info.path} is of {info.world_size} ranks, not {world_size}"
        from headway.ckpt_store.client import verify  # a driver starts sooner without its numpy

        problems = verify(info)
        return f"{problems[0].path} is damaged: {problems[0].message}" if problems else ""
    return f"there is no complete checkpoint of step {step}"


def lack_after(checkpoints: Path, world_size: int, step: int) -> str:
    """Why there is no complete checkpoint of a later step than ``step``; empty when there is one.

    Raises:
        HeadwayError, OSError: the folder cannot be read now.
    """
    found = newest(checkpoints, world_size=world_size)
    if found is None:
        return "there is no complete checkpoint yet"
    return "" if found.step > step else f"the newest complete checkpoint is of step {found.step}"
