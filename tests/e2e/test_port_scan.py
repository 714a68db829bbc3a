"""Strangers on every port of a run, with garbage or silent: no process of the run notices them."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
from typing import Any

import pytest
from headway.common.node.process import ProcessId
from headway.testkit.wire.strangers import strangers

NAME = "scanned"
HELD = 20
"""Silent connections per port."""
GARBAGE = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"GET / HTTP/1.0\r\n\r\n",
    *(random.Random(seed).randbytes(size) for seed, size in enumerate((48, 5000, 90_000))),
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_who_scans_the_ports_of_a_run_costs_it_no_process_and_no_generation(machine: Any) -> None:
    """And a rank that dies meanwhile is replaced beside the connections that stay open."""
    machine.launch(NAME, machine.two_ranks)
    before = machine.stepping(NAME, 3)
    ports, known = machine.ports(), set(machine.processes())
    assert len(ports) >= 6, "executor, driver, monitor, the store of a generation, gloo's of ranks"
    for port in ports:
        for content in GARBAGE:
            _send(port, content)

    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(strangers(f"tcp://127.0.0.1:{port}", HELD))
        after = machine.stepping(NAME, machine.stepping(NAME)["step"] + 30)
        assert known <= set(machine.processes())
        assert _parts(after) == _parts(before)
        assert len(machine.events(NAME, "generation")) == 1

        victim = ProcessId.of(after["ranks"][1]["pid"])
        assert victim is not None and victim.kill(signal.SIGKILL)
        machine.wait_until(lambda: len(machine.events(NAME, "generation")) == 2, "a recovery")
        again = machine.stepping(NAME, after["step"] + 5)
        assert again["generation"] == 1
        assert again["ranks"][0]["pid"] == after["ranks"][0]["pid"]
    machine.headway("stop", NAME, "--runs-dir", machine.runs)
    machine.assert_clean(NAME)


def _send(port: int, content: bytes) -> None:
    """Refused, reset and closed while it is sent: all are answers."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 5.0) as stranger,
    ):
        stranger.settimeout(0.2)
        stranger.sendall(content)
        stranger.recv(64)


def _parts(status: dict[str, Any]) -> tuple[Any, ...]:
    pids = [row["pid"] for row in status["ranks"]]
    return status["epoch"], status["generation"], pids, status["services"]
