"""Descriptors of a process whose port is flooded, in a process of its own with a low limit."""

from __future__ import annotations

import resource
import subprocess
import sys

from headway.common.polling import wait_until
from headway.common.wire.client import Client
from headway.common.wire.messages.service import Ping, Pong
from headway.testkit.wire.strangers import strangers

LIMIT_S = 30.0
SERVER = """
import os, resource, sys
from headway.common.wire.descriptors import HandshakeLimiter
from headway.common.wire.server import Server
from headway.common.wire.service import Service
hard = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
server = Server("tcp://127.0.0.1:0", {})
service = Service("flooded", server)
keeper = HandshakeLimiter([server], clients=10)
print(server.endpoint, resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
opened = 0

def look():
    global opened
    keeper.look()
    try:
        os.close(os.open("/dev/null", os.O_RDONLY))
        opened += 1
    except OSError:
        opened = 0
    print(opened, int(keeper._shut_at is not None), flush=True)

service.every(0.05, look)
service.run()
"""


class Flooded:
    """The server's process, which says after each look how many files it could open in a row."""

    def __init__(self, hard: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(hard)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.log: list[str] = []
        self.endpoint, soft = self._next("tcp://").split()
        self.soft = int(soft)

    def _next(self, start: str = "") -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)
            if line.startswith(start):
                return line
        raise AssertionError("".join(self.log))

    def look(self) -> tuple[int, bool]:
        """(files opened in a row, whether the door is shut) after the next look."""
        while True:
            words = self._next().split()
            if len(words) == 2 and words[0].isdigit():
                return int(words[0]), words[1] == "1"

    def __enter__(self) -> Flooded:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_service_may_open_as_many_files_as_the_hard_limit_allows() -> None:
    hard = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    with Flooded(hard) as flooded:
        assert flooded.soft == hard
        flooded.look()
    assert not [line for line in flooded.log if "too few" in line]


def test_a_limit_that_is_too_low_for_the_clients_is_logged_with_a_remedy() -> None:
    with Flooded(300) as flooded:
        flooded.look()
    (line,) = [line for line in flooded.log if "too few open files" in line]
    assert "needed=522" in line and "LimitNOFILE" in line


def test_strangers_who_take_every_descriptor_leave_some_for_files() -> None:
    with Flooded(800) as flooded:
        with Client(flooded.endpoint) as friend, strangers(flooded.endpoint, 1000):
            friend.call(Ping(), Pong, timeout_s=LIMIT_S)  # behind a thousand strangers
            was_shut = 0
            assert wait_until(lambda: flooded.look()[1], LIMIT_S), "descriptors were left"
            while was_shut < 60:  # 3 of the 4 s for which it is shut
                opened, is_shut = flooded.look()
                assert opened and is_shut
                was_shut += 1
            friend.call(Ping(), Pong)  # connections that exist go on
        assert wait_until(lambda: not flooded.look()[1], LIMIT_S)
        with Client(flooded.endpoint) as later:
            later.call(Ping(), Pong)
