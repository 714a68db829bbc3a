"""What a node's checkpoint store receives, and its notes to the executor about checkpoints."""

from __future__ import annotations

from typing import Literal

from headway.common.wire.about import PartOf, note, reply, request
from headway.common.wire.message import Message

StoreProblem = Literal[
    "no_space", "flush_failed", "manifest_failed", "remove_failed", "corrupt",
    "folder_unseen", "incomplete",
]  # fmt: skip
"""``folder_unseen``: it cannot be listed; ``incomplete``: some ranks never wrote their part."""


class StoreStatus(Message, tag="ckpt_store.status/1"):
    """Asks how far the node's checkpoints have come."""

    about = request("any client -> ckpt_store over ipc: on demand")


class ArenaStatus(Message, tag="ckpt_store.arena_status/1"):
    """One rank's arena, as the store sees it."""

    about = PartOf("StoreStatusReply")

    rank: int
    committed_step: int
    """Newest snapshot in memory that all ranks have sealed, -1 before the first."""
    durable_step: int
    """Newest step of this rank that this daemon has flushed or found on disk, -1 for none."""


class StoreStatusReply(Message, tag="ckpt_store.status_reply/1"):
    """The state of the node's arenas and of the checkpoints folder."""

    about = reply("ckpt_store -> any client over ipc: one per `StoreStatus` or `Flush`")

    run_id: str
    node: int
    world_size: int
    shm_dir: str
    checkpoints: str
    arenas: tuple[ArenaStatus, ...]
    complete_step: int
    """Step of the newest complete checkpoint in the folder, -1 for none."""
    bytes_written: int
    """Snapshot bytes flushed since the daemon started."""
    errors: int
    """Failed attempts and other errors since the daemon started."""
    last_error: str = ""
    last_remedy: str = ""
    last_step: int = -1
    """The step that the last error concerned, -1 for none."""
    progress: int = 0
    """Grows with every piece written or read back, so that a client knows
    whether to keep waiting."""
    is_saving: bool = False
    """Whether a ``Flush`` with ``newest`` has not been carried out."""


class Flush(Message, tag="ckpt_store.flush/1"):
    """Asks the store to look at arenas and folder now instead of at its next period.

    The reply does not wait for the disk: send ``StoreStatus`` until the checkpoint is complete.
    Carrying it out twice is harmless.

    With ``newest`` the newest snapshot that all ranks hold in memory is made durable too, although
    no rank asks for it: ranks that are paused, evaluate or have ended cannot.
    """

    about = request("any client -> ckpt_store over ipc: now and then")

    newest: bool = False


class CheckpointComplete(Message, tag="ckpt_store.complete/1"):
    """A checkpoint is complete on disk: every rank's part and the manifest."""

    about = note(
        "ckpt_store -> executor over ipc: once per newest complete checkpoint, also at start",
        "`StoreStatus` shows the same",
    )

    run_id: str
    node: int
    step: int
    generation: int
    from_memory: bool = False
    """The store wrote it on its own: because of a ``Flush`` with ``newest``, or at its end."""


class StoreTrouble(Message, tag="ckpt_store.trouble/1"):
    """The store could not write or read something. Training continues."""

    about = note(
        "ckpt_store -> executor over ipc: once per problem", "the log and `StoreStatus` show it too"
    )

    run_id: str
    node: int
    kind: StoreProblem
    message: str
    remedy: str
    step: int = -1
    generation: int = -1
