"""What an order of the driver to a worker holds, as the messages that the worker takes."""

from __future__ import annotations

from headway.common.wire.message import Message
from headway.common.wire.messages.executor import ToWorker
from headway.common.wire.messages.worker import Abort, StoreAddress


def messages_of(order: ToWorker) -> list[Message]:
    """The parts of ``order`` that are set, in the order in which a worker needs them."""
    found: list[Message] = [] if order.assign is None else [order.assign]
    if order.store_generation >= 0:
        found.append(
            StoreAddress(
                generation=order.store_generation,
                host=order.store_host,
                port=order.store_port,
                secret=order.store_secret,
            )
        )
    if order.steer is not None:
        found.append(order.steer)
    if order.abort_generation is not None:
        found.append(Abort(generation=order.abort_generation))
    return found
