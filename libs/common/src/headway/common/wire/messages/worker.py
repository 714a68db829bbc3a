"""What a worker receives, all through its executor's ``ipc`` ROUTER, as notes to the worker's DEALER."""

from __future__ import annotations

from headway.common.wire.message import Message


class Restore(Message, tag="worker.restore/1"):
    """Part of ``Assign``: where a rank's state comes from; never sent alone, so no rate and no loss of its own."""

    source: str
    """``init`` (step 0 from the seed), ``arena`` (the rank's own segment) or ``durable`` (a folder)."""
    step: int
    """Completed steps in the state to restore."""
    folder: str = ""
    """The complete checkpoint folder, with ``durable``."""


class Steer(Message, tag="worker.steer/1"):
    """Driver -> executor -> worker, one per command and again while unacknowledged; loss delays the command."""

    sequence: int
    """Position in the run's command list, from 1; ranks apply commands in this order."""
    operation: str
    """``pause``, ``resume``, ``stop``, ``checkpoint`` or ``set``."""
    name: str = ""
    """With ``set``: the setting, today ``lr``."""
    value: float = 0.0


class Assign(Message, tag="worker.assign/1"):
    """Driver -> executor -> worker: take a rank in a generation; sent again until the worker reports joining."""

    generation: int
    rank: int
    restore: Restore
    commands: tuple[Steer, ...] = ()
    """Every command of the run so far, so that a newcomer holds what the survivors hold."""


class StoreAddress(Message, tag="worker.store_address/1"):
    """Driver -> executor -> worker: where rank 0 of the generation listens; sent again until the worker joined."""

    generation: int
    host: str
    port: int


class Abort(Message, tag="worker.abort/1"):
    """Driver -> executor -> worker: leave every generation up to this one; sent again until the worker is out."""

    generation: int


class Quit(Message, tag="worker.quit/1"):
    """Executor -> worker: exit now; lost with the executor, whose successor sends it again."""


class Acknowledged(Message, tag="worker.acknowledged/1"):
    """Executor -> worker, one per ``WorkerBeat``; a worker that hears none for ``orphan_limit_s`` ends itself."""
