"""What every service receives and answers, and the beat that every service sends to its executor."""

from __future__ import annotations

from headway.common.wire.message import Message

State = dict[str, str | int | float | bool | None]


class Failure(Message, tag="service.failure/1"):
    """Any server -> its client, ``err`` reply on ROUTER/DEALER, one a refused request; loss: asked again."""

    code: str
    message: str
    remedy: str = ""


class Done(Message, tag="service.done/1"):
    """Any server -> its client, reply on ROUTER/DEALER that has nothing to tell; loss: asked again."""


class Ping(Message, tag="service.ping/1"):
    """Anyone -> any service, request on DEALER/ROUTER, now and then; loss: asked again."""


class Pong(Message, tag="service.pong/1"):
    """Any service -> who sent ``Ping``, reply on ROUTER/DEALER; loss: asked again."""

    name: str
    pid: int
    start_ticks: int
    run_id: str
    uptime_s: float


class Describe(Message, tag="service.describe/1"):
    """Console -> any service, request on DEALER/ROUTER, by hand; loss: asked again."""


class Description(Message, tag="service.description/1"):
    """Any service -> who sent ``Describe``, reply on ROUTER/DEALER; loss: asked again.

    ``messages`` are the tags that the service takes, ``state`` what it wants to tell about itself.
    """

    name: str
    version: str
    protocol: int
    messages: list[str]
    state: State


class Drain(Message, tag="service.drain/1"):
    """Executor or console -> any service, request on DEALER/ROUTER, once at its end; loss: asked again.

    The service finishes what it holds and exits 0.
    """


class Drained(Message, tag="service.drained/1"):
    """Any service -> who sent ``Drain``, reply on ROUTER/DEALER; loss: asked again, or its exit is seen.

    ``done`` False: work is left, the service goes on with it and then exits.
    """

    done: bool


class ServiceBeat(Message, tag="service.beat/1"):
    """Any service -> its executor, note on DEALER/ROUTER, one a ``Beat.period_s``; loss: the next tells all.

    ``alive_seq`` counts turns of the service's loop timer: it stands still while a handler blocks.
    ``progress`` moves only when useful work was done: a loop that turns in vain shows a moving ``alive_seq``
    beside a standing ``progress``. ``slowest`` and ``slowest_s`` name the longest single callback since the
    last beat.
    """

    name: str
    pid: int
    start_ticks: int
    alive_seq: int
    progress: int
    slowest: str = ""
    slowest_s: float = 0.0
