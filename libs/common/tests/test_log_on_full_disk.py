"""A log that cannot be written ends nothing: services serve, lines are counted, exit codes stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.errors import RemoteError
from headway.common.node.testing import child_environment, wait_until
from headway.common.wire import codec
from headway.common.wire.client import Client
from headway.common.wire.messages.service import Describe, Description, Ping, Pong, ServiceBeat
from headway.common.wire.server import Server

SERVICE = """
import sys
from headway.common.log import get_logger, setup, trouble
from headway.common.wire.messages.service import Describe
from headway.common.wire.server import Server
from headway.common.wire.service import Beat, Service

class Unprintable(Exception):
    def __str__(self): raise ValueError("no text")
    __repr__ = __str__

def fail(*_): raise Unprintable
def log(): get_logger("part").info("hello")
def print_something(): print("to stdout"); print("to stderr", file=sys.stderr)

setup("probe")
beat = Beat(endpoint=sys.argv[2], progress=lambda: 7, period_s=0.01)
server = Server(sys.argv[1], {Describe: fail})
service = Service("probe", server, beat=beat)
for callback in (fail, log, print_something):
    service.every(0.005, callback)
sys.exit(service.run())
"""

TORN = """
import resource, sys
from headway.common.log import get_logger, setup, trouble
from headway.common.log_stream import writer_of

def room(soft): resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))

setup("probe")
log = get_logger("part")
room(100)  # the first line fits in part
log.info("first")
log.info("second")
assert trouble() == "2 log lines lost: File too large", trouble()
room(resource.RLIM_INFINITY)
log.info("third")
log.info("fourth")
assert (trouble(), writer_of(sys.stderr).num_lost_ever) == ("", 2)
"""


@pytest.fixture
def sock_dir() -> Iterator[Path]:
    """Short: the paths of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        yield Path(folder)


def test_a_service_on_a_full_log_disk_serves_and_beats_while_callbacks_and_handlers_fail(
    sock_dir: Path,
) -> None:
    endpoint, received = f"ipc://{sock_dir}/probe.sock", []
    with Server(
        f"ipc://{sock_dir}/beats.sock", {ServiceBeat: lambda m, _: received.append(m)}
    ) as here:
        with open("/dev/full", "ab") as full:  # noqa: PTH123
            process = subprocess.Popen(
                [sys.executable, "-c", SERVICE, endpoint, here.endpoint],
                stdout=full,
                stderr=full,
                env=child_environment(),
            )
        try:
            with Client(endpoint) as client:
                for _ in range(3):
                    assert client.call(Ping(), Pong, timeout_s=20).name == "probe"
                    with pytest.raises(RemoteError, match="Unprintable"):
                        client.call(Describe(), Description)
                    client.notify(Describe())
                    client.socket.send(b"garbage")
                    client.socket.send_multipart([codec.encode_frame("rep", 1, b""), b"more"])
                seen = len(received)

                def more_beats() -> bool:
                    here.handle_ready()
                    return len(received) >= seen + 5

                wait_until(more_beats, what="more beats")
                assert client.call(Ping(), Pong).pid == process.pid
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()


def test_lost_lines_are_counted_in_the_log_once_it_can_be_written_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab") as file:
        subprocess.run(
            [sys.executable, "-c", TORN],
            stdout=file,
            stderr=file,
            check=True,
            env=child_environment(),
        )
    torn, notice, third, fourth = log.read_text().splitlines()
    assert len(torn) == 100
    assert json.loads(notice).items() >= {
        "event": "log lines were lost", "num_lost": 2, "reason": "File too large",
        "service": "probe", "level": "warning",
    }.items()  # fmt: skip
    assert [json.loads(line)["event"] for line in (third, fourth)] == ["third", "fourth"]


COMMAND = """
import sys
import typer
from headway.common import cli
from headway.common.errors import InputError
app = cli.group("probe")
@app.command()
def refuse() -> None: raise InputError("no")
@app.command()
def fail() -> None: raise RuntimeError("no")
sys.exit(cli.run(app, "probe", sys.argv[1:]))
"""
SET_UP = "from headway.common.log import setup; setup('probe');"


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        (f"{SET_UP} print('x' * 20000)", [], 0),
        (f"{SET_UP} raise SystemExit('a reason')", [], 1),
        (f"{SET_UP} 1 / 0", [], 1),
        (f"{SET_UP} import sys; sys.exit(3)", [], 3),
        (COMMAND, ["refuse"], 2),
        (COMMAND, ["fail"], 1),
        (COMMAND, ["--unknown"], 2),
    ],
)
def test_a_full_disk_does_not_change_the_exit_code(
    code: str, words: list[str], expected: int
) -> None:
    with open("/dev/full", "ab") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            stdout=full,
            stderr=full,
            env=child_environment(),
            check=False,
        )
    assert done.returncode == expected


HUNG = """
import os, sys
from headway.common.log import get_logger, setup

from headway.common.log_stream import tolerate_stderr

tolerate_stderr()  # as each command does before it knows what it is to be
setup("probe", in_background=True)
log = get_logger("part")
for number in range(12_000):  # far more than a pipe holds
    log.info("a line", number=number)
os.write(3, b"all are logged")
sys.exit(7)
"""


def test_a_log_whose_reader_does_not_read_stops_nothing_and_says_what_was_lost() -> None:
    """A pipe that nobody reads blocks a writer, as a file system that hangs does."""
    reader, writer = os.pipe()
    done_reader, done_writer = os.pipe()
    command = f"exec 3>&{done_writer}; exec {sys.executable} -c '{HUNG}' 2>&{writer}"
    process = subprocess.Popen(
        ["bash", "-c", command],
        pass_fds=(writer, done_writer),
        env=child_environment(),
    )
    os.close(writer)
    os.close(done_writer)
    assert os.read(done_reader, 100) == b"all are logged"
    with os.fdopen(reader, "rb") as log:
        lines = [json.loads(line) for line in log.read().splitlines()]
    assert process.wait(60) == 7
    os.close(done_reader)
    numbers = [line["number"] for line in lines if line["event"] == "a line"]
    assert numbers == sorted(set(numbers))
    lost = [line["num_lost"] for line in lines if line["event"] == "log lines were lost"]
    assert lost and sum(lost) + len(numbers) == 12_000
