"""Records every frame that crosses the bridge in a pcap file, which Wireshark reads too."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.testkit.bed.namespace import Namespace

_ALL_PROTOCOLS = 3
_SO_RCVBUFFORCE = 33
_SOL_PACKET, _ADD_MEMBERSHIP, _STATISTICS, _PROMISCUOUS = 263, 1, 6, 1
_BUFFER_BYTES = 256 << 20
_MAX_FRAME = 1 << 18
"""A node hands segments of up to 64 KiB to its cable, and nothing cuts them up."""
MAGIC, ETHERNET = 0xA1B2C3D4, 1


class Capture:
    """Runs until ``stop``, or the end of its ``with`` block."""

    def __init__(self, path: Path, namespace: Namespace, device: str) -> None:
        self.path = path
        self._socket = namespace.call(lambda: _listen(device))
        self._stop = os.eventfd(0)
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._record, name="capture")
        self._thread.start()

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Record what has crossed so far and end.

        Raises:
            HeadwayError: frames are missing in the file.
        """
        if not self._thread.is_alive():
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        _, lost = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8))
        self._socket.close()
        os.close(self._stop)
        if self._error is not None:
            raise HeadwayError(f"{self.path} is not complete: {self._error}") from self._error
        if lost:
            raise HeadwayError(f"{self.path} is not complete: {lost} frames are missing")

    def _record(self) -> None:
        try:
            with self.path.open("wb") as file:
                file.write(struct.pack("=IHHiIII", MAGIC, 2, 4, 0, 0, _MAX_FRAME, ETHERNET))
                while True:
                    ready, _, _ = select.select([self._socket.fileno(), self._stop], [], [])
                    if self._socket.fileno() in ready:
                        frame = self._socket.recv(_MAX_FRAME)
                        at_us = time.time_ns() // 1000
                        times = (at_us // 10**6, at_us % 10**6)
                        file.write(struct.pack("=IIII", *times, len(frame), len(frame)) + frame)
                    elif self._stop in ready:
                        return
        except OSError as error:
            self._error = error


def _listen(device: str) -> socket.socket:
    """A socket on which every frame arrives that the bridge forwards."""
    listening = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    listening.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    membership = struct.pack("=iHH8x", socket.if_nametoindex(device), _PROMISCUOUS, 0)
    listening.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, membership)
    listening.bind((device, _ALL_PROTOCOLS))
    return listening
