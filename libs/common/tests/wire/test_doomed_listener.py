"""A socket's path is taken over from a listener that will never run again, and from no other."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.common.node.testing import doomed, frozen, python_child, read_line
from headway.common.wire.client import Client
from headway.common.wire.messages.service import Ping, Pong
from headway.common.wire.server import Server
from headway.testkit.wire import serving

LISTENER = """
import sys
from headway.common.wire.server import Server
server = Server("ipc://" + sys.argv[1], {})
print("up", flush=True)
sys.stdin.readline()
"""


def answer(_message: Ping, _peer: bytes) -> Pong:
    return Pong(name="successor", pid=1, start_ticks=1, run_id="")


def fill(path: Path, open_: contextlib.ExitStack) -> None:
    """Connect until the listener's queue is full."""
    for _ in range(5000):
        client = open_.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        client.setblocking(False)
        if client.connect_ex(str(path)):
            return
    raise AssertionError("the queue has no end")


@pytest.mark.parametrize("is_full", [False, True], ids=["queue with room", "full queue"])
def test_the_path_of_a_listener_frozen_with_sigkill_pending_is_taken_over(
    sock_dir: Path, is_full: bool
) -> None:
    path = sock_dir / "a.sock"
    with python_child(LISTENER, path) as child, contextlib.ExitStack() as open_:
        assert read_line(child) == "up"
        try:
            with frozen(child.pid):
                if is_full:
                    fill(path, open_)
                with pytest.raises(InputError, match=f"in use by process {child.pid}"):
                    Server(f"ipc://{path}", {})
            with doomed(child.pid):
                if is_full:
                    fill(path, open_)
                with (
                    serving(Server(f"ipc://{path}", {Ping: answer})) as server,
                    Client(server.endpoint) as client,
                ):
                    assert client.call(Ping(), Pong).name == "successor"
        except PermissionError as error:
            pytest.skip(str(error))
