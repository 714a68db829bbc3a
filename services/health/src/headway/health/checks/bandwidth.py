"""Checks that loopback transfers bytes intact, and fast enough for collectives of local ranks.

The sender is a plain thread, no ``SideThread``: a check has no loop, and waits for it.
"""

from __future__ import annotations

import socket
import threading
import time
import zlib

from headway.health.checks.base import MIB, CheckSettings, Finding

NUM_BYTES = 128 * MIB
BLOCK_BYTES = 1 * MIB
SOCKET_LIMIT_S = 10.0


def check(settings: CheckSettings) -> Finding:
    """One TCP stream through loopback, compared by CRC-32."""
    rate, is_whole = transfer(NUM_BYTES)
    values: dict[str, float | str] = {"MiB/s": round(rate / MIB, 1)}
    if not is_whole:
        return Finding(
            False,
            "bytes changed on the way through loopback",
            "drain the node: memory or kernel fault",
            values,
        )
    if rate < settings.min_loopback_bytes_per_s:
        wanted = settings.min_loopback_bytes_per_s / MIB
        message = f"loopback carries {rate / MIB:.0f} MiB/s, below {wanted:.0f}"
        return Finding(
            False,
            message,
            "see what else uses the CPUs (top), and for traffic shaping (tc qdisc)",
            values,
        )
    return Finding(True, f"loopback carries {rate / MIB:.0f} MiB/s", values=values)


def transfer(num_bytes: int) -> tuple[float, bool]:
    """(bytes per second, whether the bytes arrived unchanged)."""
    block = bytes(range(256)) * (BLOCK_BYTES // 256)
    sent_crc = [0]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SOCKET_LIMIT_S)
        sender = threading.Thread(
            target=_send, args=(listener.getsockname()[1], block, num_bytes, sent_crc), daemon=True
        )
        sender.start()
        stream, _ = listener.accept()
        with stream:
            stream.settimeout(SOCKET_LIMIT_S)
            received, crc, elapsed_s = _receive(stream)
        sender.join(SOCKET_LIMIT_S)
    return received / elapsed_s, received == num_bytes and crc == sent_crc[0]


def _send(port: int, block: bytes, num_bytes: int, sent_crc: list[int]) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=SOCKET_LIMIT_S) as stream:
        for _ in range(num_bytes // len(block)):
            stream.sendall(block)
            sent_crc[0] = zlib.crc32(block, sent_crc[0])


def _receive(stream: socket.socket) -> tuple[int, int, float]:
    buffer = memoryview(bytearray(BLOCK_BYTES))
    received, crc, began_s = 0, 0, time.perf_counter()
    while count := stream.recv_into(buffer):
        received += count
        crc = zlib.crc32(buffer[:count], crc)
    return received, crc, max(time.perf_counter() - began_s, 1e-9)
