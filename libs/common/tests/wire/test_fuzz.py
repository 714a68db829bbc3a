"""A server and a metrics port, fed bad input, serve on with memory and descriptors flat."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from headway.common.node.testing import child_environment, wait_until
from headway.common.wire import codec
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.service import Drain, Ping, Pong
from headway.testkit.wire import FuzzReport, all_messages, example_of, fuzz_endpoint

WARM_UP = 2000
MOST_GROWTH_BYTES = 16 << 20  # replies kept for retries (8 MiB), megabyte frames in flight
# silent connections that the driver holds, and as many that are being closed
MOST_DESCRIPTORS = 32 + 32 + 4

PROGRAM = """
import sys
from pathlib import Path
from headway.common.wire.keys import KeyPair
from headway.common.wire.server import Server
from headway.common.wire.service import Service
keys = KeyPair.load(Path(sys.argv[2])) if len(sys.argv) > 2 else None
server = Server(sys.argv[1], {}, keys)
service = Service("target", server, metrics_port=0)
service.after(0.0, lambda: print("at", server.endpoint, service.metrics_port, flush=True))
sys.exit(service.run())
"""


@dataclass
class Victim:
    process: subprocess.Popen[str]
    endpoint: str
    metrics_port: int
    server_key: bytes | None

    def ping(self) -> None:
        with Client(self.endpoint, server_key=self.server_key) as client:
            assert client.call(Ping(), Pong, timeout_s=30.0).pid == self.process.pid

    def num_descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextmanager
def victim(endpoint: str, keys: KeyPair | None, folder: Path) -> Iterator[Victim]:
    arguments = [sys.executable, "-c", PROGRAM, endpoint]
    if keys is not None:
        keys.save(folder / "server.key")
        arguments.append(str(folder / "server.key"))
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=child_environment())
    assert child.stdout is not None
    try:
        line = ""
        while not line.startswith("at "):
            line = child.stdout.readline()
            assert line, "the server did not come up"
        _, resolved, port = line.split()
        yield Victim(child, resolved, int(port), keys.public if keys else None)
        child.terminate()
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def hold_out(target: Victim, endpoint: str, count: int, probe: Callable[[], None]) -> FuzzReport:
    corpus = [
        codec.encode(example_of(message)) for message in all_messages() if message is not Drain
    ]
    fuzz_endpoint(endpoint, count=WARM_UP, seed=1, corpus=corpus, server_key=target.server_key)
    probe()
    before_bytes, before_descriptors = (
        psutil.Process(target.process.pid).memory_info().rss,
        target.num_descriptors(),
    )
    report = fuzz_endpoint(
        endpoint, count=count, seed=2, corpus=corpus, server_key=target.server_key, probe=probe
    )
    assert report.total == count
    assert psutil.Process(target.process.pid).memory_info().rss - before_bytes < MOST_GROWTH_BYTES
    wait_until(lambda: target.num_descriptors() <= before_descriptors + MOST_DESCRIPTORS)
    return report


COUNTS = pytest.mark.parametrize(
    "count",
    [5_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)


@COUNTS
@pytest.mark.parametrize("kind", ["ipc", "tcp", "curve"])
def test_a_server_serves_on_under_bad_input(sock_dir: Path, kind: str, count: int) -> None:
    endpoint = f"ipc://{sock_dir}/a.sock" if kind == "ipc" else "tcp://127.0.0.1:0"
    with victim(endpoint, KeyPair.generate() if kind == "curve" else None, sock_dir) as target:
        report = hold_out(target, target.endpoint, count, target.ping)
    assert not report.refused_handshake
    streams = {name for name in report.sent if name.startswith("stream_")}
    assert {"mutated_body", "bomb", "nested", "frame_count", "oversize"} <= set(report.sent)
    assert len(streams) == 7


@COUNTS
def test_a_metrics_port_serves_on_under_bad_input(sock_dir: Path, count: int) -> None:
    import urllib.request

    with victim(f"ipc://{sock_dir}/a.sock", None, sock_dir) as target:
        url = f"http://127.0.0.1:{target.metrics_port}"

        def scrape() -> None:
            with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
                assert b"headway_wire_messages" in answer.read()
            target.ping()

        hold_out(target, url, count, scrape)


def test_the_same_seed_sends_the_same_input() -> None:
    from headway.testkit.wire.inputs import Inputs

    corpus = [codec.encode(Ping())]

    def draw(seed: int) -> list[object]:
        inputs = Inputs(seed, corpus)
        return [inputs.frames() if number % 2 else inputs.stream() for number in range(200)]

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_a_probe_that_fails_tells_seed_and_position(sock_dir: Path) -> None:
    def fail() -> None:
        raise AssertionError("no answer")

    with (
        victim(f"ipc://{sock_dir}/a.sock", None, sock_dir) as target,
        pytest.raises(AssertionError) as caught,
    ):
        fuzz_endpoint(target.endpoint, count=100, seed=9, corpus=[], probe=fail, probe_every=10)
    assert caught.value.__notes__ == ["after input 9 of seed 9"]
