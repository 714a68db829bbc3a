"""Whatever arrives on a socket of ours, its process lives,
keeps its memory and serves others meanwhile.

The daemons are the real ones. Some hundred inputs each belong to every suite, 100,000 each to
``make fuzz``.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from headway.common.node.testing import private_roots, wait_until
from headway.testkit.wire import fuzz_endpoint

FEW, MANY = 600, 100_000
WARM_UP = 200
MOST_GROWTH_BYTES = 24 << 20
"""Replies kept for retries take up to 8 MiB, megabyte frames in flight a few more."""

COUNTS = pytest.mark.parametrize(
    "count",
    [
        pytest.param(FEW, id="few"),
        pytest.param(MANY, id="many", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
SOCKETS = ["dataloader", "ckpt_store", "agent", "monitor", "driver", "executor", "executor.ipc"]
KEYED = ["monitor.stranger", "driver.stranger", "executor.stranger"]


def _hold_out(target: Any, count: int, server_key: bytes | None) -> Any:
    pid = target.pid()
    options: dict[str, Any] = {
        "corpus": target.corpus,
        "server_key": server_key,
        "keys": target.keys if server_key else None,
    }
    fuzz_endpoint(target.endpoint, count=WARM_UP, seed=1, **options)
    target.probe()
    before = psutil.Process(pid).memory_info().rss
    report = fuzz_endpoint(
        target.endpoint,
        count=count,
        seed=2,
        probe=target.probe,
        probe_every=min(1000, count // 4),
        **options,
    )
    target.probe()
    assert target.pid() == pid
    assert psutil.Process(pid).memory_info().rss - before < MOST_GROWTH_BYTES
    assert report.total >= count * 0.99
    return report


@COUNTS
@pytest.mark.parametrize("name", SOCKETS)
def test_bad_messages_and_streams_leave_a_service_as_it_was(
    node: Any, name: str, count: int
) -> None:
    target = node.target(name)
    report = _hold_out(target, count, target.server_key)
    assert not report.refused_handshake
    assert report.sent["mutated_body"] and report.sent["stream_bad_zmtp"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is silence: whoever is admitted is so within milliseconds."""
    monkeypatch.setattr("headway.testkit.wire.fuzz.CONNECT_S", 1.0)


@COUNTS
@pytest.mark.parametrize("name", KEYED)
@pytest.mark.usefixtures("impatient")
def test_a_stranger_with_the_servers_public_key_gets_no_message_in(
    node: Any, name: str, count: int
) -> None:
    target = node.target(name)
    report = _hold_out(target, count, target.server_key)
    assert report.refused_handshake
    assert all(kind.startswith("stream_") for kind in report.sent)


@pytest.mark.parametrize("name", ["monitor", "driver", "executor"])
@pytest.mark.usefixtures("impatient")
def test_whoever_has_no_key_gets_no_message_in(node: Any, name: str) -> None:
    report = _hold_out(node.target(f"{name}.stranger"), FEW, None)
    assert report.refused_handshake


@COUNTS
def test_bad_joins_at_the_gate_add_no_member_to_a_run(gate: Any, count: int) -> None:
    report = _hold_out(gate, count, gate.server_key)
    assert not report.refused_handshake
    assert report.sent["mutated_body"] and report.sent["odd_field"]


@pytest.mark.usefixtures("impatient")
def test_whoever_has_no_key_gets_no_message_into_the_gate(gate: Any) -> None:
    report = _hold_out(gate, FEW, None)
    assert report.refused_handshake


@COUNTS
@pytest.mark.parametrize("exporter", ["dataloader", "ckpt_store", "agent"], indirect=True)
def test_bad_requests_leave_a_metrics_port_as_it_was(exporter: Any, count: int) -> None:
    _hold_out(exporter, count, None)


@COUNTS
def test_bad_datagrams_leave_the_zygote_forking(node: Any, count: int) -> None:
    pid, draw = node.pid("zygote"), random.Random(3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(20.0)
        sender.connect(str(node.paths.socket("zygote")))
        before = psutil.Process(pid).memory_info().rss
        for number in range(count):
            sender.send(_bad_name(draw, number))
        sender.send(b"n1w77")
        wait_until((node.run.logs / "n1w77.log").exists, what="the worker that was asked for")
    assert node.pid("zygote") == pid
    assert psutil.Process(pid).memory_info().rss - before < MOST_GROWTH_BYTES
    forked = {path.name for path in node.run.logs.glob("n1w*.log")}
    assert forked == {"n1w77.log"}


def _bad_name(draw: random.Random, number: int) -> bytes:
    match number % 6:
        case 0:
            return b""
        case 1:
            return draw.randbytes(draw.randrange(4000))
        case 2:
            return b"n0w%d" % number  # another node's
        case 3:
            return b"n1w" + draw.choice(
                (b"", b"-1", b"1/../../x", b"1\0", "\u00b2".encode(), b"1.5", b" 1")
            )
        case 4:
            # a number that no count of workers reaches, longer than a file name
            return b"n1w" + b"7" * draw.randrange(20, 250)
        case _:
            return b"x" * 60_000


@pytest.mark.parametrize(
    "command",
    [
        ["headway.dataloader", "serve", "--shm-dir", "{shm}"],
        ["headway.ckpt_store", "serve", "--shm-dir", "{shm}", "--checkpoints", "{here}"],
        ["headway.health", "agent", "--shm-dir", "{shm}", "--logs", "{here}", "--node-file",
         "{here}/m.json",
         "--keys", "{here}/keys", "--run-id", "0badcafe", "--node", "0"],
    ],
    ids=["dataloader", "ckpt_store", "agent"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("tcp://0.0.0.0:0", "means every interface of a machine"),
        ("tcp://*:0", "means every interface of a machine"),
        ("tcp://[::]:0", "means every interface of a machine"),
        ("tcp://192.0.2.1:0", "has no keys; give it CURVE keys"),
        ("tcp://localhost:0", "has no keys; give it CURVE keys"),
    ],
)
def test_no_service_without_keys_listens_off_loopback(
    command: list[str], endpoint: str, reason: str, tmp_path: Path
) -> None:
    with private_roots() as (_, memory):
        places = {"shm": memory, "here": tmp_path}
        argv = [
            sys.executable,
            "-m",
            *(word.format(**places) for word in command),
            "--endpoint",
            endpoint,
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert reason in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1


def test_every_tcp_socket_of_a_run_is_on_loopback(node: Any) -> None:
    """What listens is read from the kernel, not from what the services say."""
    listening = (
        _listening(node.pid("executor"))
        | _listening(node.pid("driver"))
        | _listening(node.pid("monitor"))
    )
    assert len(listening) == 3
    assert all(address.startswith("0100007F:") for address in listening)
    for quiet in ("dataloader", "ckpt_store", "agent", "zygote"):
        assert _listening(node.pid(quiet)) == set()


def _listening(pid: int) -> set[str]:
    """Local addresses, in hex, of the process's listening TCP sockets (proc(5))."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(entry.readlink()))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.add(fields[1])
    return found


def test_sockets_and_memory_of_a_node_are_closed_to_other_users(node: Any) -> None:
    for folder in (node.paths.sock_dir, node.paths.shm_dir, node.cluster.path / "keys"):
        assert folder.stat().st_mode & 0o077 == 0, folder
    for key in (node.cluster.path / "keys").iterdir():
        assert key.stat().st_mode & 0o077 == 0, key
