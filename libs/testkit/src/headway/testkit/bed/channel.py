"""Messages with file descriptors between the owner of a bed and the first process of a node."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

_MAX_BYTES = 1 << 20
_MAX_FDS = 8


class Channel:
    """One end of a SOCK_SEQPACKET pair. Each end notices that the other process has ended."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls, *, timeout_s: float) -> tuple[Channel, Channel]:
        """The owner's end, whose calls time out, and the other one."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.settimeout(timeout_s)
        return cls(near), cls(far)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Raises ConnectionError if the other end is closed."""
        socket.send_fds(self._socket, [json.dumps(message).encode()], list(fds))

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message and its descriptors, which the caller closes.

        Raises:
            ConnectionError: the other end is closed.
        """
        flags = socket.MSG_CMSG_CLOEXEC
        data, fds, _, _ = socket.recv_fds(self._socket, _MAX_BYTES, _MAX_FDS, flags)
        if not data:
            raise ConnectionResetError("the other end of the channel is closed")
        return json.loads(data), fds

    def close(self) -> None:
        self._socket.close()
