"""How a machine becomes a node of a run."""

from __future__ import annotations

from headway.common.wire.about import RETRIED, About
from headway.common.wire.message import Message


class Join(Message, tag="driver.join/1"):
    """Asks to be a node of the run; the token, not the client's key, admits it."""

    about = About(
        sender="node",
        receiver="driver",
        kind="request",
        transport="tcp",
        rate="once per node and boot",
        on_loss="sent again; the same node gets the same answer",
    )

    node: int
    token: str
    """From the engine, see ``headway.launch.joining.tokens``."""
    uid: str
    """Of the machine, the same at each boot."""
    boot_id: str
    host: str
    """Its host name, for people."""
    public_key: str
    """The node's own key, Z85; the driver admits it from now on."""
    version: str
    """Of Headway."""
    num_gpus: int = 0
    num_cpus: int = 0
    memory_bytes: int = 0
    shm_bytes: int = 0
    """Size of /dev/shm."""
    unix_s: float = 0.0


class Joined(Message, tag="driver.joined/1"):
    """The machine is a node of the run."""

    about = About(
        sender="driver",
        receiver="node",
        kind="reply",
        transport="tcp",
        rate="one per `Join`",
        on_loss=RETRIED,
    )

    node: int
    epoch: int
    bundle: str
    """What the node needs to carry the run: ``headway.launch.joining.bundle``, as JSON."""
