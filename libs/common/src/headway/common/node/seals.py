"""Which snapshots the arenas of a node hold, as an executor reports them during recovery."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.node.arena_format import damaged
from headway.common.node.arena_reader import ArenaReader

_NAME = re.compile(r"arena-(\d{1,9})\.bin")


def read_seals(
    paths: Iterable[Path], *, run_id: str = ""
) -> tuple[dict[int, tuple[int, ...]], dict[int, str]]:
    """(rank -> steps of its sealed snapshots, oldest first; rank -> the damage, naming the file).

    Only headers are read, so it takes well below a millisecond per file; a worker verifies what it
    restores. Never raises and never blocks, whatever these paths lead to. A rank whose file is
    damaged has no steps; if only some of its slots are damaged, it appears in both results and the
    steps listed for it are valid. Missing files, and names that do not belong to an arena, are left
    out. With ``run_id``, a file of any other run counts as damaged.
    """
    sealed: dict[int, tuple[int, ...]] = {}
    wrong: dict[int, str] = {}
    for path in paths:
        if (name := _NAME.fullmatch(path.name)) is None:
            continue
        rank = int(name[1])
        try:
            with ArenaReader.open(path, writable=False) as arena:
                if arena.rank != rank or arena.run_id != (run_id or arena.run_id):
                    raise damaged(path, f"it is of rank {arena.rank}, run {arena.run_id}")
                steps, reasons = tuple(info.step for info in arena.sealed()), arena.damage()
                sealed[rank] = steps
        except FileNotFoundError:
            continue
        except HeadwayError as error:
            reasons = [error.message]
        except Exception as error:  # one odd file must not keep the other ranks from recovery
            reasons = [f"arena {path} cannot be read: {error!r}"]
        if reasons:
            wrong[rank] = "; ".join(reasons)
    return sealed, wrong
