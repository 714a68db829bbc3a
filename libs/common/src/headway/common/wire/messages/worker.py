"""What a worker receives, all through its executor's ``ipc`` ROUTER, as notes to the worker's DEALER."""

from __future__ import annotations

from headway.common.wire.message import Message


class Restore(Message, tag="worker.restore/1"):
    """Part of ``Assign``: where a rank's state comes from; never sent alone, so no rate and no loss of its
    own."""

    source: str
    """``init`` (step 0 from the seed), ``arena`` (the rank's own segment) or ``durable`` (a folder)."""
    step: int
    """Completed steps in the state to restore."""
    folder: str = ""
    """The complete checkpoint folder, with ``durable``."""


class Steer(Message, tag="worker.steer/1"):
    """Driver -> executor -> worker, note, one per command and again while unacknowledged; loss delays the
    command."""

    sequence: int
    """Position in the run's command list, from 1; ranks apply commands in this order."""
    operation: str
    """``pause``, ``resume``, ``stop``, ``checkpoint``, ``set`` or ``unset``."""
    name: str = ""
    """With ``set`` and ``unset``: the setting, today ``lr``."""
    value: float = 0.0


class Assign(Message, tag="worker.assign/1"):
    """Driver -> executor -> worker, note, once a generation: take a rank; sent again until the worker reports
    joining, so loss delays it."""

    generation: int
    rank: int
    restore: Restore
    commands: tuple[Steer, ...] = ()
    """Every command of the run so far, so that a newcomer holds what the survivors hold."""


class StoreAddress(Message, tag="worker.store_address/1"):
    """Driver -> executor -> worker, note, once a generation: where rank 0 listens; sent again until the worker
    joined, so loss delays it."""

    generation: int
    host: str
    port: int
    secret: str = ""
    """What the store wants to see before it answers."""


class Abort(Message, tag="worker.abort/1"):
    """Driver -> executor -> worker, note, once a recovery: leave every generation up to this one; sent again
    until the worker is out, so loss delays it."""

    generation: int


class Quit(Message, tag="worker.quit/1"):
    """Executor -> worker, note, once: exit now; lost with the executor, whose successor sends it again."""


class Acknowledged(Message, tag="worker.acknowledged/1"):
    """Executor -> worker, note, one per ``WorkerBeat``; loss is tolerated, a worker that hears none for
    ``orphan_limit_s`` ends itself."""

    stored: tuple[int, int] = (-1, -1)
    """(generation, step) of the newest metrics of this worker that the driver has stored; what is newer is
    sent again to another executor."""
    incarnation: int = 0
    """Number of the executor process: another one does not know what was sent to the one before."""
