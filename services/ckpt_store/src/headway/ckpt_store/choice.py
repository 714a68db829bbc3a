"""Chooses the checkpoint to restore: the same one on every rank of a job, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.ckpt_store.folder import CheckpointInfo, complete
from headway.ckpt_store.reading import UnreadableError
from headway.ckpt_store.verify import check_all_parts
from headway.common.errors import CorruptError
from headway.common.log import get_logger

Read = Callable[[CheckpointInfo], Any]
"""Reads one rank's state of a checkpoint. Raises CorruptError."""
Agree = Callable[[int], int]
"""The smallest of the numbers that all ranks pass; every rank calls it equally often."""

_GENERATION_BITS = 20

log = get_logger("checkpoints")


class DamagedShardError(CorruptError):
    """This rank cannot read a checkpoint that other ranks may have restored."""

    def __init__(self, error: CorruptError, folder: Path) -> None:
        super().__init__(
            error.message, remedy="on all ranks, restore a step before that one by its number"
        )
        self.folder = folder


def restore_alone(checkpoints: Path, world_size: int, read: Read) -> tuple[int, Any] | None:
    """(step, state) of the newest checkpoint; damaged ones are skipped.

    With several ranks, only damage that every rank sees counts: lengths, and digests of part files.

    Raises:
        DamagedShardError: with several ranks, this rank's shard of the newest one. CorruptError:
        nothing readable is left.
    """
    problem: CorruptError | None = None
    try:
        candidates = complete(checkpoints, all_readable=world_size > 1)
    except UnreadableError as error:
        if world_size == 1:
            raise
        # The damage may be local to this rank: other ranks might not skip it.
        raise DamagedShardError(error, error.path.parent) from None
    for info in candidates:
        try:
            if world_size > 1:
                check_all_parts(info)
        except UnreadableError as error:
            raise DamagedShardError(error, info.path) from None
        except CorruptError as error:
            problem = problem or _passed_over(info, error)
            continue
        try:
            return info.step, read(info)
        except CorruptError as error:
            if world_size > 1:
                raise DamagedShardError(error, info.path) from None
            problem = problem or _passed_over(info, error)
    if problem is not None:
        raise problem
    return None


def restore_together(
    checkpoints: Path, world_size: int, read: Read, agree: Agree
) -> tuple[int, Any] | None:
    """(step, state) of the newest checkpoint that every rank can read.

    In each round every rank reads its newest one up to a bound, which is lowered to the minimum.

    Raises:
        CorruptError: there are checkpoints, but none that all ranks can read.
    """
    bound: int | None = None
    problem: CorruptError | None = None
    while True:
        mine, state = -1, None
        try:
            for info in complete(checkpoints):
                number = info.step << _GENERATION_BITS | info.generation
                if bound is not None and number > bound:
                    continue
                try:
                    if world_size > 1:
                        check_all_parts(info)
                    mine, state = number, read(info)
                    break
                except CorruptError as error:
                    problem = problem or _passed_over(info, error)
        except CorruptError as error:
            problem = problem or error
        lowest, highest = agree(mine), -agree(-mine)
        if lowest == highest >= 0:
            return mine >> _GENERATION_BITS, state
        if lowest < 0:
            has_problem = highest >= 0 or -agree(-int(problem is not None)) > 0
            if not has_problem:
                return None
            raise problem or CorruptError(
                f"another rank cannot read any checkpoint in {checkpoints}",
                remedy="inspect them with `headway ckpt verify --all`",
            )
        bound = lowest


def _passed_over(info: CheckpointInfo, error: CorruptError) -> CorruptError:
    log.warning("checkpoint passed over", path=str(info.path), reason=error.message)
    return error
