"""Delays frames by a thread that carries them, since kernels are often built without netem.

The packet filter of a cable drops what its node sends over a slow path. A packet socket receives a
copy before that filter runs; the relay sends the copy over the bridge later, where it reaches the
other node as any other frame does.
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headway.testkit.bed.black_hole import Instruction
from headway.testkit.bed.namespace import Namespace

_ALL_PROTOCOLS = 3
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_SOL_PACKET, _VNET_HEADER, _IGNORE_OUTGOING = 263, 15, 23
_BUFFER_BYTES = 64 << 20
_MAX_FRAME = 1 << 18
_HEADER_BYTES = 10
"""A virtio_net_hdr before each frame: segments that are still to be cut up, and checksums that are
still to be computed, pass as they are."""
_TARGET = slice(_HEADER_BYTES + 30, _HEADER_BYTES + 34)


@dataclass(frozen=True)
class Path:
    """What leaves one cable and arrives later."""

    device: str
    """The switch's end of the cable."""
    delays_s: Mapping[str, float]
    """Address of the receiver -> seconds."""
    code: Sequence[Instruction]
    """Packet filter that accepts exactly these frames."""


class Relay:
    """Carries frames until ``close``. Paths never change: another set needs another relay."""

    def __init__(self, switch: Namespace, bridge: str, paths: Sequence[Path]) -> None:
        self._paths = {switch.call(partial(_listen, path)): path for path in paths}
        self._bridge = switch.call(lambda: _sender(bridge))
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._carry, name="relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; what is still on its way arrives at once."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        for one in (self._bridge, *self._paths):
            one.close()
        os.close(self._stop)

    def _carry(self) -> None:
        waiting: list[tuple[float, int, bytes]] = []
        files = {source.fileno(): (source, path) for source, path in self._paths.items()}
        number = itertools.count()  # frames of one path keep their order
        while True:
            pause_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            ready, _, _ = select.select([*files, self._stop], [], [], pause_s)
            for file in ready:
                if file in files and (frame := _receive(files[file][0])):
                    delay_s = files[file][1].delays_s[socket.inet_ntoa(frame[_TARGET])]
                    heapq.heappush(waiting, (time.monotonic() + delay_s, next(number), frame))
            is_over = self._stop in ready
            while waiting and (is_over or waiting[0][0] <= time.monotonic()):
                self._send(heapq.heappop(waiting)[2])
            if is_over:
                return

    def _send(self, frame: bytes) -> None:
        try:
            self._bridge.send(frame)
        except OSError:  # a queue is full: a switch would drop the frame, too
            return


def _listen(path: Path) -> socket.socket:
    """A socket for the frames of a path; bound last, so that it has never been without filter."""
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    found.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    found.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    found.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    packed = b"".join(struct.pack("=HBBI", *one) for one in path.code)
    code = ctypes.create_string_buffer(packed)
    program = struct.pack("@HP", len(path.code), ctypes.addressof(code))
    found.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    found.bind((path.device, _ALL_PROTOCOLS))
    return found


def _receive(source: socket.socket) -> bytes:
    """A frame; empty when the cable was pulled, which the kernel reports once."""
    try:
        return source.recv(_MAX_FRAME)
    except OSError:
        return b""


def _sender(bridge: str) -> socket.socket:
    """A socket whose frames the bridge forwards."""
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    found.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    found.bind((bridge, 0))
    return found
