"""The executor's connection to the process that holds the driver's lease."""

from __future__ import annotations

from collections.abc import Callable

from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import Message
from headway.common.wire.messages.executor import (
    CheckNode,
    DriverBeat,
    Inject,
    KillWorker,
    ReadSeals,
    RestartService,
    SaveSnapshots,
    StopRun,
    ToWorker,
)
from headway.common.wire.service import Service
from headway.launch.lease.base import Holder

ORDERS = (
    CheckNode,
    DriverBeat,
    ToWorker,
    KillWorker,
    ReadSeals,
    RestartService,
    SaveSnapshots,
    StopRun,
    Inject,
)

log = get_logger("executor")


class Uplink:
    """A DEALER to the driver's ROUTER, made anew for each holder of the lease.

    Without one, notes are dropped.
    """

    def __init__(
        self,
        service: Service,
        identity: str,
        keys: KeyPair,
        on_message: Callable[[Message], None],
    ) -> None:
        self._service, self._identity, self._keys = service, identity.encode(), keys
        self._on_message = on_message
        self._client: Client | None = None
        self._to: tuple[int, str, str] | None = None

    def follow(self, holder: Holder | None) -> bool:
        """Connect to the holder of the lease; True if that is another one than before."""
        if holder is None or not holder.endpoint:
            return False
        to = (holder.epoch, holder.endpoint, holder.server_key)
        if to == self._to:
            return False
        self.close()
        try:
            client = Client(
                holder.endpoint,
                keys=self._keys,
                server_key=holder.server_key.encode(),
                identity=self._identity,
                accept=ORDERS,
            )
        except HeadwayError as error:
            log.error("the lease names no usable address", holder=str(to), reason=str(error))
            return False
        self._client, self._to = client, to
        self._service.watch(client.socket, self._receive)
        log.info("connected to the driver", epoch=holder.epoch, endpoint=holder.endpoint)
        return True

    def send(self, message: Message) -> bool:
        """Send a note; False when nobody is connected or the queue is full: it is dropped."""
        return self._client is not None and self._client.notify(message)

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._service.unwatch(self._client.socket)
            self._client.close()
        self._client, self._to = None, None

    def _receive(self) -> None:
        if self._client is None:
            return
        for message in self._client.receive():
            self._on_message(message)
            if self._client is None:  # the run has ended meanwhile
                return
