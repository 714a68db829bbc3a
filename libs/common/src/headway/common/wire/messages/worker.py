"""What a worker receives: notes from its executor's ``ipc`` ROUTER to the worker's DEALER."""

from __future__ import annotations

from typing import Literal

from headway.common.wire.about import PartOf, note
from headway.common.wire.message import Message

SteerOperation = Literal[
    "pause", "resume", "stop", "checkpoint", "set", "unset", "extend", "evaluate", "sample",
    "rollback",
]  # fmt: skip
"""What a user asks of all ranks."""
RestoreSource = Literal["init", "arena", "durable"]


class Restore(Message, tag="worker.restore/1"):
    """Where a rank's state comes from."""

    about = PartOf("Assign")

    source: RestoreSource
    """Step 0 from the seed, the rank's own segment, or a folder."""
    step: int
    """Completed steps in the state to restore."""
    folder: str = ""
    """The complete checkpoint folder, with ``durable``."""
    skip_to: int = 0
    """Position of the data from which training continues, if the state's own is before it: the
    samples up to there led to a spike."""
    doubted: int = -1
    """The rank whose part of the checkpoint one reader could not read; -1 without one."""
    reader: int = -1
    """The rank that reads that part as well, before it joins: only two readers that agree make the
    checkpoint a bad one."""


class Steer(Message, tag="worker.steer/1"):
    """A user's command that all ranks apply at the same step."""

    about = note(
        "driver -> worker via executor over tcp, then ipc: one per command",
        "the driver repeats it until the worker acknowledges it",
    )

    sequence: int
    """Position in the run's command list, from 1; ranks apply commands in this order."""
    operation: Literal[SteerOperation, "retired"]
    """Only the driver carries out a ``rollback``; nobody what is ``retired``: it had its effect
    before the run was resumed."""
    name: str = ""
    """For ``set`` and ``unset``, the setting, today ``lr``."""
    value: float = 0.0
    """For ``set``, the setting's value; for ``sample``, the temperature."""
    count: int = 0
    """For ``extend``, steps of the whole run; for ``sample``, tokens; for ``rollback``, a step.

    ``extend``: steps of the whole run from now on. ``sample``: tokens to write. ``rollback``: the
    checkpoint's step.
    """
    tokens: tuple[int, ...] = ()
    """For ``sample``, the prompt."""


class Assign(Message, tag="worker.assign/1"):
    """Makes a worker take a rank of a new generation."""

    about = note(
        "driver -> worker via executor over tcp, then ipc: once per generation",
        "the driver repeats it until the worker reports joining",
    )

    generation: int
    rank: int
    restore: Restore
    commands: tuple[Steer, ...] = ()
    """Every command of the run so far, so that a new worker has the same ones as the survivors."""
    answered: int = 0
    """Evaluations and samples of commands up to this one were made, and are not made again."""


class StoreAddress(Message, tag="worker.store_address/1"):
    """Where the ranks of the generation meet: the store that rank 0 opened."""

    about = note(
        "driver -> worker via executor over tcp, then ipc: once per generation",
        "the driver repeats it until the worker has joined",
    )

    generation: int
    host: str
    port: int
    secret: str = ""
    """The store's public key, without which no connection to it can be made."""


class Abort(Message, tag="worker.abort/1"):
    """Makes a worker leave every generation up to this one."""

    about = note(
        "driver -> worker via executor over tcp, then ipc: once per recovery",
        "the driver repeats it until the worker has left",
    )

    generation: int


class Quit(Message, tag="worker.quit/1"):
    """Makes a worker exit now."""

    about = note(
        "executor -> worker over ipc: once",
        "lost only with the executor, whose successor sends it again",
    )


class Acknowledged(Message, tag="worker.acknowledged/1"):
    """Confirms a worker's beat, and which of its metrics are stored."""

    about = note(
        "executor -> worker over ipc: one per `WorkerBeat`",
        "tolerated; a worker that gets none for `orphan_limit_s` exits",
    )

    stored: tuple[int, int] = (-1, -1)
    """(generation, step) of this worker's newest metrics that the driver has stored; newer ones are
    sent again to another executor."""
    incarnation: int = 0
    """Number of the executor process; a new one has not received what the earlier one did."""
    measured: tuple[int, int] = (-1, -1)
    """See ``DriverBeat``; a worker keeps the metrics of newer steps that another rank reports."""
