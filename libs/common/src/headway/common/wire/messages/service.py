"""What every service receives and answers, and the beat that it sends to its executor."""

from __future__ import annotations

from headway.common.wire.about import note, reply, request
from headway.common.wire.message import Message

State = dict[str, str | int | float | bool | None]


class Failure(Message, tag="service.failure/1"):
    """The request was refused, with the reason and a remedy; sent with kind ``err``."""

    about = reply("any service -> any client over ipc or tcp: one per refused request")

    code: str
    message: str
    remedy: str = ""


class Done(Message, tag="service.done/1"):
    """The request was carried out and has no result."""

    about = reply("any service -> any client over ipc or tcp: one per request without a result")


class Ping(Message, tag="service.ping/1"):
    """Asks whether a service answers."""

    about = request("any client -> any service over ipc or tcp: on demand")


class Pong(Message, tag="service.pong/1"):
    """Which process answered, and for how long it has been running."""

    about = reply("any service -> any client over ipc or tcp: one per `Ping`")

    name: str
    pid: int
    start_ticks: int
    run_id: str


class Describe(Message, tag="service.describe/1"):
    """Asks a service about itself."""

    about = request("console -> any service over ipc or tcp: on demand")


class Description(Message, tag="service.description/1"):
    """The tags of the messages that a service accepts, and its state."""

    about = reply("any service -> console over ipc or tcp: one per `Describe`")

    name: str
    version: str
    messages: list[str]
    state: State


class Drain(Message, tag="service.drain/1"):
    """Asks a service to finish the work it holds and to exit with code 0."""

    about = request(
        "console or executor -> any service over ipc or tcp: once, at the end of the service"
    )


class Drained(Message, tag="service.drained/1"):
    """The service will exit; with ``done`` False only after the work that is left."""

    about = reply(
        "any service -> console or executor over ipc or tcp: one per `Drain`",
        "sent again, or the exit of the process is seen",
    )

    done: bool


class ServiceBeat(Message, tag="service.beat/1"):
    """Shows that a service is alive and whether it makes progress.

    ``alive_seq`` counts turns of the service's loop timer and does not move while a handler blocks.
    ``progress`` moves only when useful work was done, so a loop that turns in vain shows a moving
    ``alive_seq`` and a constant ``progress``.
    """

    about = note(
        "any service -> executor over ipc: one per `Beat.period_s`",
        "the next beat carries the same",
    )

    name: str
    pid: int
    start_ticks: int
    alive_seq: int
    progress: int
