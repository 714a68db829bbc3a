"""Checks that processes of the machine carry bytes to each other all at the same time.

This is a form for plain sockets over loopback: the all-to-all of MegaScale, section 4.3 (arXiv
2402.15627), uses NCCL, which belongs to the trainer and is not loaded here. It loads every core and
memory node at once, which a single stream does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from headway.common.node.memory_nodes import memory_nodes
from headway.common.node.process import end_with_parent, ending_with_me
from headway.health.checks.base import MIB, CheckSettings, Finding
from headway.health.measure.streams import (
    SOCKET_LIMIT_S,
    TOKEN_BYTES,
    Received,
    accept,
    connect,
    listen,
    receive,
    send,
)

LOOPBACK = "127.0.0.1"
MOST_PROCESSES = 8
"""Most processes that are started: a machine usually has as many GPUs, and so ranks."""
NUM_BYTES = 8 * MIB
"""From each process to each other one."""


def check(settings: CheckSettings) -> Finding:
    """Start the processes, have each send to all others, and compare what arrives."""
    count = min(MOST_PROCESSES, max(2, len(os.sched_getaffinity(0))))
    try:
        received = exchange(count, NUM_BYTES)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Finding(False, f"the exchange broke: {error}", "see dmesg, and what loads the CPUs")
    return judge(received, settings)


def judge(measured: list[Received], _settings: CheckSettings) -> Finding:
    """The finding about what each process has received from all others."""
    whole = total(measured)
    rate, count = whole.bytes_per_s, len(measured)
    values: dict[str, float | str] = {"processes": count, "MiB/s": round(rate / MIB, 1)}
    if whole.num_damaged:
        message = f"{whole.num_damaged} blocks changed on the way"
        return Finding(False, message, "drain the node: memory or kernel fault", values)
    message = f"{count} processes exchange {rate / MIB:.0f} MiB/s in all, over sockets"
    return Finding(True, message, "", values)


def exchange(count: int, num_bytes: int) -> list[Received]:
    """What each process received in all, and how long that took.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: a process failed, or did not end in time.
    """
    token = secrets.token_hex(TOKEN_BYTES)
    nodes = list(memory_nodes().values())
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listen(LOOPBACK)) for _ in range(count)]
        ports = [listener.getsockname()[1] for listener in listeners]
        children = []
        for rank, listener in enumerate(listeners):
            order = {
                "listener": listener.fileno(),
                "peers": ports[:rank] + ports[rank + 1 :],
                "token": token,
                "num_bytes": num_bytes,
                "cpus": sorted(nodes[rank % len(nodes)]),
            }
            children.append(_start(order, listener.fileno()))
            stack.callback(_end, children[-1])
        return [_result(child) for child in children]


def take_part(order: dict[str, Any]) -> Received:
    """The work of one process: send to all peers and receive from all, at the same time."""
    os.sched_setaffinity(0, order["cpus"])
    token, peers = bytes.fromhex(order["token"]), order["peers"]
    with (
        socket.socket(fileno=order["listener"]) as listener,
        ThreadPoolExecutor(2 * len(peers)) as pool,
    ):
        sending = [pool.submit(_send_to, port, token, order["num_bytes"]) for port in peers]
        streams = [accept(listener, token, SOCKET_LIMIT_S) for _ in peers]
        received = list(pool.map(receive, streams))
        for one in sending:
            one.result()
    return total(received)


def total(received: Sequence[Received]) -> Received:
    """Streams that ran at the same time, as one."""
    return Received(
        sum(one.num_bytes for one in received),
        max(one.duration_s for one in received),
        sum(one.num_damaged for one in received),
    )


def _send_to(port: int, token: bytes, num_bytes: int) -> None:
    with connect(LOOPBACK, port, token) as stream:
        send(stream, num_bytes)


def _start(order: dict[str, Any], listener: int) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "headway.health.checks.all_to_all"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=(listener,),
        env=ending_with_me(os.environ),
    )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code says how
        child.stdin.write(json.dumps(order))
        child.stdin.close()
    child.stdin = None
    return child


def _result(child: subprocess.Popen[str]) -> Received:
    output, errors = child.communicate(timeout=2 * SOCKET_LIMIT_S)
    if child.returncode:
        last = errors.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        raise OSError(f"a process failed: {last[0]}")
    return Received(**json.loads(output))


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


if __name__ == "__main__":
    end_with_parent()
    print(json.dumps(asdict(take_part(json.load(sys.stdin)))))
