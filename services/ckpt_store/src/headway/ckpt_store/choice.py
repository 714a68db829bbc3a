"""Which checkpoint does a job of several ranks restore? The same one on every rank, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.ckpt_store.folder import CheckpointInfo, complete
from headway.ckpt_store.verify import verify
from headway.common.errors import CorruptError

Read = Callable[[CheckpointInfo], Any]
"""Reads one rank's state of a checkpoint. Raises CorruptError."""
Agree = Callable[[int], int]
"""The smallest of the numbers that all ranks give; every rank calls it equally often."""


class DamagedShardError(CorruptError):
    """This rank's shard of a checkpoint is damaged while other ranks may have restored theirs."""

    def __init__(self, error: CorruptError, info: CheckpointInfo) -> None:
        super().__init__(
            error.message,
            remedy=f"on all ranks, restore a step before {info.step} by its number",
        )
        self.info = info


def restore_alone(checkpoints: Path, world_size: int, read: Read) -> tuple[int, Any] | None:
    """(step, state) of the newest checkpoint; a damaged one is passed over.

    With several ranks only for what every rank sees by itself: lengths, and digests of the part files.

    Raises:
        DamagedShardError: with several ranks, this rank's shard of the newest one. CorruptError: nothing
        readable is left.
    """
    problem: CorruptError | None = None
    for info in complete(checkpoints):
        try:
            _check_all_parts(info, world_size)
        except CorruptError as error:
            problem = problem or error
            continue
        try:
            return info.step, read(info)
        except CorruptError as error:
            if world_size > 1:
                raise DamagedShardError(error, info) from error
            problem = problem or error
    if problem is not None:
        raise problem
    return None


def restore_together(
    checkpoints: Path, world_size: int, read: Read, agree: Agree
) -> tuple[int, Any] | None:
    """(step, state) of the newest checkpoint that every rank can read.

    Each round every rank reads its newest one up to a bound, which comes down to the smallest of them.

    Raises:
        CorruptError: there are checkpoints, but none that all ranks can read.
    """
    bound: int | None = None
    problem: CorruptError | None = None
    while True:
        mine, state = -1, None
        try:
            for info in complete(checkpoints):
                if bound is not None and info.step > bound:
                    continue
                try:
                    _check_all_parts(info, world_size)
                    mine, state = info.step, read(info)
                    break
                except CorruptError as error:
                    problem = problem or error
        except CorruptError as error:
            problem = problem or error
        lowest, highest = agree(mine), -agree(-mine)
        if lowest == highest >= 0:
            return mine, state
        if lowest < 0:
            has_problem = highest >= 0 or -agree(-int(problem is not None)) > 0
            if not has_problem:
                return None
            raise problem or CorruptError(
                f"another rank can read no checkpoint in {checkpoints}",
                remedy="look with `headway ckpt verify --all`",
            )
        bound = lowest


def _check_all_parts(info: CheckpointInfo, world_size: int) -> None:
    if world_size > 1 and (problems := verify(info, deep=False)):
        raise CorruptError(problems[0].message, remedy="look with `headway ckpt verify`")
