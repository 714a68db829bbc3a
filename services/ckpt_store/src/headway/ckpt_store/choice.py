"""Chooses the checkpoint to restore: the same one on every rank of a job, or none.

A checkpoint that is removed while it is read is not damaged: newer ones have taken its place, so
the folder is listed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from headway.ckpt_store.agreement import Agree, end_together
from headway.ckpt_store.folder import LISTINGS, CheckpointInfo, complete, find, has_vanished
from headway.ckpt_store.reading import UnreadableError
from headway.ckpt_store.verify import check_all_parts
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.common.log import get_logger

Read = Callable[[CheckpointInfo], Any]
"""Reads one rank's state of a checkpoint. Raises CorruptError."""

_GENERATION_BITS = 20

_UNSEEN_ROUNDS = 3
_UNSEEN_PAUSE_S = 0.2
"""For the listings of a shared folder to become equal on all nodes."""
_NOBODY = 1 << 40

T = TypeVar("T")

log = get_logger("checkpoints")


class DamagedShardError(CorruptError):
    """This rank cannot read a checkpoint that other ranks may have restored."""

    def __init__(self, error: CorruptError, folder: Path) -> None:
        super().__init__(
            error.message, remedy="on all ranks, restore a step before that one by its number"
        )
        self.folder = folder


class VanishedError(HeadwayError):
    """The checkpoint was removed while it was read."""


def restore_alone(checkpoints: Path, world_size: int, read: Read) -> tuple[int, Any] | None:
    """(step, state) of the newest checkpoint; damaged ones are skipped.

    With several ranks, only damage that every rank sees counts: lengths, and digests of part files.

    Raises:
        DamagedShardError: with several ranks, this rank's shard of the newest one. CorruptError:
        nothing readable is left.
    """
    return _listing_again(checkpoints, lambda: _newest_of_one(checkpoints, world_size, read))


def _newest_of_one(checkpoints: Path, world_size: int, read: Read) -> tuple[int, Any] | None:
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
                present(info, check_all_parts)
        except UnreadableError as error:
            raise DamagedShardError(error, info.path) from None
        except CorruptError as error:
            problem = problem or _passed_over(info, error)
            continue
        try:
            return info.step, present(info, read)
        except CorruptError as error:
            if world_size > 1:
                raise DamagedShardError(error, info.path) from None
            problem = problem or _passed_over(info, error)
    if problem is not None:
        raise problem
    return None


def restore_together(
    checkpoints: Path, rank: int, world_size: int, read: Read, agree: Agree
) -> tuple[int, Any] | None:
    """(step, state) of the newest checkpoint that every rank can read.

    In each round every rank reads its newest one up to a bound, which is lowered to the minimum. An
    error of one rank ends it on all of them.

    Raises:
        CorruptError: there are checkpoints, but none that all ranks can read. InputError: some
        ranks see none at all. HeadwayError: another rank failed; its own error is raised there.
    """
    bound: int | None = None
    mine, state, unseen = -1, None, (-1, 0)
    for _ in range(LISTINGS):
        kept = (mine, state) if unseen[1] else (-1, None)
        mine, state, problem, error = _newest_up_to(checkpoints, bound, world_size, read, kept)
        end_together(agree, rank, error)
        lowest, highest = agree(mine), -agree(-mine)
        if lowest == highest >= 0:
            return mine >> _GENERATION_BITS, state
        if lowest < 0:
            end_together(agree, rank, problem)
            if highest < 0 and bound is None:
                return None
        if lowest < 0 and bound is None:
            unseen = highest, unseen[1] + 1 if unseen[0] == highest else 1
            if unseen[1] == _UNSEEN_ROUNDS:
                raise _unseen(checkpoints, _ranks_without(agree, rank, mine), highest)
            time.sleep(_UNSEEN_PAUSE_S)
            continue
        unseen = -1, 0
        bound = lowest if lowest >= 0 else None  # None: it was removed meanwhile
        state = None
    raise _removed_too_fast(checkpoints)


def restore_step(checkpoints: Path, step: int, read: Read) -> Any:
    """The state of checkpoint ``step``.

    Raises:
        InputError: it does not exist, or was removed meanwhile. CorruptError: it is damaged.
    """
    info = find(checkpoints, step)
    try:
        return present(info, read)
    except VanishedError as error:
        raise InputError(error.message, remedy="restore a newer step, or raise keep") from None


def present(info: CheckpointInfo, read: Callable[[CheckpointInfo], T]) -> T:
    """``read(info)``, whose errors count only while the checkpoint is there.

    Raises:
        VanishedError: it was removed meanwhile. Whatever ``read`` raises.
    """
    try:
        return read(info)
    except (CorruptError, FileNotFoundError):
        if has_vanished(info):
            raise VanishedError(f"{info.path} was removed while it was read") from None
        raise


def _newest_up_to(
    checkpoints: Path,
    bound: int | None,
    world_size: int,
    read: Read,
    kept: tuple[int, Any] = (-1, None),
) -> tuple[int, Any, CorruptError | None, Exception | None]:
    """Find and read the newest checkpoint up to ``bound``.

    Returns its number, -1 if there is none, and its state; why one was passed over; and an error
    that does not concern the checkpoints. ``kept`` was read before.
    """
    problem: CorruptError | None = None

    def search() -> tuple[int, Any]:
        nonlocal problem
        for info in complete(checkpoints):
            number = info.step << _GENERATION_BITS | info.generation
            if bound is not None and number > bound:
                continue
            if number == kept[0]:
                return kept
            try:
                if world_size > 1:
                    present(info, check_all_parts)
                return number, present(info, read)
            except CorruptError as error:
                problem = problem or _passed_over(info, error)
        return -1, None

    try:
        number, state = _listing_again(checkpoints, search)
    except CorruptError as error:
        return -1, None, problem or error, None
    except Exception as error:
        return -1, None, problem, error
    return number, state, problem, None


def _listing_again(checkpoints: Path, search: Callable[[], T]) -> T:
    """``search``, again as long as what it reads is removed meanwhile."""
    for _ in range(LISTINGS):
        try:
            return search()
        except VanishedError:
            continue
    raise _removed_too_fast(checkpoints)


def _ranks_without(agree: Agree, rank: int, mine: int) -> list[int]:
    """The ranks that see no checkpoint; every rank gets the same list."""
    found: list[int] = []
    while True:
        is_next = mine < 0 and rank not in found
        lowest = agree(rank if is_next else _NOBODY)
        if lowest == _NOBODY:
            return found
        found.append(lowest)


def _unseen(checkpoints: Path, ranks: list[int], newest: int) -> InputError:
    return InputError(
        f"ranks {ranks} see no checkpoint in {checkpoints}, others see step "
        f"{newest >> _GENERATION_BITS}",
        remedy="check that the same folder is mounted on the nodes of those ranks",
    )


def _removed_too_fast(checkpoints: Path) -> HeadwayError:
    return HeadwayError(
        f"the checkpoints in {checkpoints} are removed faster than they can be read",
        remedy="raise keep where they are saved",
    )


def _passed_over(info: CheckpointInfo, error: CorruptError) -> CorruptError:
    log.warning("checkpoint passed over", path=str(info.path), reason=error.message)
    return error
