"""What every service receives and answers, and the beat that it sends to its executor."""

from __future__ import annotations

from headway.common.wire.about import RETRIED, About
from headway.common.wire.message import Message

State = dict[str, str | int | float | bool | None]


class Failure(Message, tag="service.failure/1"):
    """The request was refused, with the reason and a remedy; sent with kind ``err``."""

    about = About(
        sender="any service",
        receiver="any client",
        kind="reply",
        transport="ipc or tcp",
        rate="one per refused request",
        on_loss=RETRIED,
    )

    code: str
    message: str
    remedy: str = ""


class Done(Message, tag="service.done/1"):
    """The request was carried out and has no result."""

    about = About(
        sender="any service",
        receiver="any client",
        kind="reply",
        transport="ipc or tcp",
        rate="one per request without a result",
        on_loss=RETRIED,
    )


class Ping(Message, tag="service.ping/1"):
    """Asks whether a service answers."""

    about = About(
        sender="any client",
        receiver="any service",
        kind="request",
        transport="ipc or tcp",
        rate="on demand",
        on_loss=RETRIED,
    )


class Pong(Message, tag="service.pong/1"):
    """Which process answered, and for how long it has been running."""

    about = About(
        sender="any service",
        receiver="any client",
        kind="reply",
        transport="ipc or tcp",
        rate="one per `Ping`",
        on_loss=RETRIED,
    )

    name: str
    pid: int
    start_ticks: int
    run_id: str
    uptime_s: float


class Describe(Message, tag="service.describe/1"):
    """Asks a service about itself."""

    about = About(
        sender="console",
        receiver="any service",
        kind="request",
        transport="ipc or tcp",
        rate="on demand",
        on_loss=RETRIED,
    )


class Description(Message, tag="service.description/1"):
    """The tags of the messages that a service accepts, and its state."""

    about = About(
        sender="any service",
        receiver="console",
        kind="reply",
        transport="ipc or tcp",
        rate="one per `Describe`",
        on_loss=RETRIED,
    )

    name: str
    version: str
    protocol: int
    messages: list[str]
    state: State


class Drain(Message, tag="service.drain/1"):
    """Asks a service to finish the work it holds and to exit with code 0."""

    about = About(
        sender="console or executor",
        receiver="any service",
        kind="request",
        transport="ipc or tcp",
        rate="once, at the end of the service",
        on_loss=RETRIED,
    )


class Drained(Message, tag="service.drained/1"):
    """The service will exit; with ``done`` False only after the work that is left."""

    about = About(
        sender="any service",
        receiver="console or executor",
        kind="reply",
        transport="ipc or tcp",
        rate="one per `Drain`",
        on_loss="sent again, or the exit of the process is seen",
    )

    done: bool


class ServiceBeat(Message, tag="service.beat/1"):
    """Shows that a service is alive and whether it makes progress.

    ``alive_seq`` counts turns of the service's loop timer and does not move while a handler blocks.
    ``progress`` moves only when useful work was done, so a loop that turns in vain shows a moving
    ``alive_seq`` and a constant ``progress``. ``slowest`` and ``slowest_s`` name the longest single
    callback since the last beat.
    """

    about = About(
        sender="any service",
        receiver="executor",
        kind="note",
        transport="ipc",
        rate="one per `Beat.period_s`",
        on_loss="the next beat carries the same",
    )

    name: str
    pid: int
    start_ticks: int
    alive_seq: int
    progress: int
    slowest: str = ""
    slowest_s: float = 0.0
