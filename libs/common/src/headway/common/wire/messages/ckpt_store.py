"""What a node's checkpoint store receives, and the notes it sends to its executor about checkpoints."""

from __future__ import annotations

from headway.common.wire.message import Message


class StoreStatus(Message, tag="ckpt_store.status/1"):
    """Anyone -> store, request on ipc, when asked: where the node's part of the checkpoints stands; loss:
    asked again."""


class ArenaStatus(Message, tag="ckpt_store.arena_status/1"):
    """Part of ``StoreStatusReply``: one rank's arena; never sent alone, so no rate and no loss of its own."""

    rank: int
    committed_step: int
    """Newest snapshot in memory that all ranks have sealed, -1 before the first."""
    durable_step: int
    """Newest step of this rank that this daemon has flushed or found flushed since it started, -1 for
    none."""
    pending_steps: tuple[int, ...] = ()
    """Steps that wait to be made durable, oldest first."""


class StoreStatusReply(Message, tag="ckpt_store.status_reply/1"):
    """Store -> whoever asked, reply to ``StoreStatus`` and ``Flush``; loss: asked again."""

    run_id: str
    node: int
    world_size: int
    shm_dir: str
    checkpoints: str
    arenas: tuple[ArenaStatus, ...]
    complete_step: int
    """Step of the newest complete checkpoint in the folder, -1 for none."""
    complete_generation: int
    bytes_written: int
    """Snapshot bytes flushed since the daemon started."""
    errors: int
    """Attempts given up and other trouble since then."""
    last_error: str = ""
    last_remedy: str = ""
    progress: int = 0
    """Moves with every piece written or checked and every job ended, so not in a stuck store."""


class Flush(Message, tag="ckpt_store.flush/1"):
    """Anyone -> store, request on ipc, now and then: look at arenas and folder now, not at the next period;
    answered by ``StoreStatusReply``; loss: asked again, or the next period comes.

    It does not wait for the disk: ask ``StoreStatus`` until nothing is pending. Carrying it out twice is
    harmless.
    """


class CheckpointComplete(Message, tag="ckpt_store.complete/1"):
    """Store -> executor, note on ipc, once for each newest complete checkpoint a daemon sees, so also at its
    start.

    A lost one is made up by ``StoreStatus``.
    """

    run_id: str
    node: int
    step: int
    generation: int


class StoreTrouble(Message, tag="ckpt_store.trouble/1"):
    """Store -> executor, note on ipc, once for each trouble; training goes on. A lost one stands in the log
    and in ``StoreStatus``."""

    run_id: str
    node: int
    kind: str
    """``no_space``, ``flush_failed``, ``manifest_failed``, ``remove_failed`` or ``corrupt``."""
    message: str
    remedy: str
    step: int = -1
    generation: int = -1
