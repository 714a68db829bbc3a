"""One rank's session in the test's own process: a small configuration, an arena, losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.common.config import from_dict
from headway.common.node.arena import Arena
from headway.common.node.arena_file import open_or_replace
from headway.testkit.trainer.layouts import small_run
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import ArenaFactory, Session
from headway.trainer.state.layout_check import difference

RUN_ID = "0123abcd"
VOCABULARY = 320
"""The smallest that a byte-level BPE can have, rounded up."""


def one_rank(data: Path | None = None, **train: Any) -> RunConfig:
    """A world of one with the small model; ``train`` goes to ``[train]``."""
    settings = small_run("fp32", world_size=1)
    settings["train"] |= {"eval_every": 0, **train}
    settings["model"]["vocab_size"] = VOCABULARY
    settings["ckpt"] = {"durable_every": 1000}
    settings["data"] = {"path": str(data)} if data is not None else {}
    return from_dict(RunConfig, settings)


def arena_at(path: Path, rank: int = 0) -> ArenaFactory:
    """Makes a rank's arena at ``path``, or opens the one that is there, as a rank does."""

    def open_arena(slot_bytes: int, layout: bytes) -> Arena:
        return open_or_replace(
            path,
            run_id=RUN_ID,
            rank=rank,
            slot_bytes=slot_bytes,
            layout=layout,
            difference=difference,
        )

    return open_arena


def arena_of(session: Session) -> Arena:
    """The arena that a joined session seals into."""
    arena = session.ready_snapshots()._arena
    assert arena is not None
    return arena


class Losses(StepHooks):
    """Keeps every loss; releases what is wanted durable, as a store does that has written it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.seen: list[float] = []

    def on_step(self, result: StepResult) -> None:
        """A step is complete."""
        self.seen.append(result.loss)
        arena = arena_of(self._session)
        for info in arena.wanted():
            arena.release(info)


def train_on(session: Session, until: int, step: int = 0, generation: int = 0) -> list[float]:
    """Train from snapshot ``step`` of the arena, or from the start; returns the losses."""
    hooks = Losses(session)
    session.join(Groups.alone(generation))
    try:
        session.load("arena" if step else "init", step)
        session.run(hooks, until)
    finally:
        session.leave()
    return hooks.seen
