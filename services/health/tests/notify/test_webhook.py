"""Verdicts sent to a real HTTP server on loopback: delivered, late, refused, lost, never twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from headway.common.errors import ConfigError
from headway.common.node.testing import child_environment, wait_until
from headway.common.wire.messages.health import Evidence, Verdict
from headway.health.config import HealthConfig
from headway.health.journal import VerdictFile
from headway.health.notify.address import shown
from headway.health.notify.news import SentFile
from headway.health.notify.notifier import Notifier
from headway.health.notify.webhook import MAX_WAITING, Webhook
from structlog.testing import capture_logs

LIMIT_S = 60.0
SECRETS = ("us3r", "pa55", "t0ken", "pa-th")


@dataclass
class Receiver:
    """A server that answers as told; a new one on the same port is that server started again."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None
    """No answer before it is set."""
    port: int = 0
    got: list[tuple[dict[str, Any], dict[str, str]]] = field(default_factory=list)
    """Bodies and headers, also of those that were not accepted."""
    num_asked: int = 0

    def __post_init__(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.num_asked += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.hold is not None:
                    outer.hold.wait(LIMIT_S)
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.got.append((json.loads(body), headers))
                with contextlib.suppress(OSError):  # of a client that has given up
                    self.send_response(outer.status)
                    for name, value in outer.headers.items():
                        self.send_header(name, value)
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_address[1]
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://us3r:pa55@127.0.0.1:{self.port}/pa-th?key=t0ken"

    def ids(self) -> list[tuple[str, int]]:
        return [(body["verdict"]["id"], body["verdict"]["revision"]) for body, _ in self.got]

    def close(self) -> None:
        if self.hold is not None:
            self.hold.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@contextlib.contextmanager
def receiving(**settings: Any) -> Iterator[Receiver]:
    receiver = Receiver(**settings)
    with contextlib.closing(receiver):
        yield receiver


@contextlib.contextmanager
def hook_to(receiver: Receiver, folder: Path, **settings: Any) -> Iterator[Webhook]:
    hook = Webhook(
        receiver.url, 0.5, SentFile(folder, receiver.url), **{"pause_s": 0.02, **settings}
    )
    try:
        yield hook
    finally:
        hook.close(0.5)


def verdict(number: int = 1, revision: int = 0, **change: Any) -> Verdict:
    fields: dict[str, Any] = {
        "id": f"worker:1:{number}:77:5#1", "revision": revision, "kind": "silence",
        "cause": "host_stall", "is_open": True, "run_id": "r1", "subject": "rank", "node": 1,
        "rank": number, "confidence": 0.8, "remedy": "replace it", "since_unix_s": 1790000000.0,
        "evidence": (Evidence(source="flight", name="why", value="it never began sum 9"),),
        "unix_s": 1790000041.0,
    }  # fmt: skip
    return Verdict(**{**fields, **change})


def reached(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what=what, timeout_s=LIMIT_S)


def test_a_verdict_arrives_as_json_with_a_text_for_people(tmp_path: Path) -> None:
    with receiving() as receiver, hook_to(receiver, tmp_path) as hook:
        hook.put(verdict())
        reached(lambda: len(receiver.got) == 1, "the verdict")
        body, headers = receiver.got[0]
        assert msgspec.convert(body["verdict"], Verdict) == verdict()
        assert body["text"].splitlines()[0] == (
            "rank 1 on node 1 holds up the run since 14:13:20 UTC (41 s): it never began sum 9"
        )
        assert headers["content-type"] == "application/json"
        assert len(headers["idempotency-key"]) == 64
        assert headers["authorization"].startswith("Basic ")


def test_news_are_sent_and_repetitions_and_the_same_are_not(tmp_path: Path) -> None:
    again = Evidence(source="beat", name="repeated", value="1 times")
    answered = verdict(revision=1, taken="observe")
    repeated = verdict(revision=2, evidence=(*verdict().evidence, again))
    worse = verdict(revision=4, kind="crash", cause="unknown", taken="observe")
    over = verdict(revision=5, is_open=False)
    as_before = verdict(revision=3, taken="observe", evidence=repeated.evidence)
    sent = [verdict(), verdict(), answered, repeated, as_before, worse, over]
    with receiving() as receiver, hook_to(receiver, tmp_path) as hook:
        for number, one in enumerate(sent):
            hook.put(one)
            expected = len({0, 2, 5, 6} & set(range(number + 1)))
            reached(lambda n=expected: len(receiver.got) == n, f"what {number} adds")  # type: ignore[misc]
        hook.put(verdict(2, confidence=0.3))
        hook.put(verdict(3))
        reached(lambda: len(receiver.got) == 5, "the next verdict")
        assert [revision for _, revision in receiver.ids()] == [0, 1, 4, 5, 0]


def test_what_a_dead_server_missed_it_gets_when_it_is_back(tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.close()
    with hook_to(receiver, tmp_path) as hook, capture_logs() as said:
        for number in range(3):
            hook.put(verdict(number))
        reached(lambda: len(said) > 0, "a line about it")
        hook.put(verdict(1, 1, taken="replaced the worker"))
        with receiving(port=receiver.port) as back:
            reached(lambda: len(back.got) == 3, "all verdicts")
            assert sorted(back.ids()) == sorted(
                (verdict(n).id, 1 if n == 1 else 0) for n in range(3)
            )
            reached(lambda: len(said) == 2, "that it is over")
    assert [line["event"] for line in said] == [
        "verdicts are not delivered", "verdicts are delivered again",
    ]  # fmt: skip
    assert said[0]["reason"] == "it accepts no connection" and said[1]["dropped"] == 0
    assert said[0]["to"] == f"http://127.0.0.1:{receiver.port}"
    assert not [secret for secret in SECRETS if secret in str(said)]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_in_trouble_is_asked_again(tmp_path: Path, status: int) -> None:
    with receiving(status=status) as receiver, hook_to(receiver, tmp_path) as hook:
        hook.put(verdict())
        reached(lambda: receiver.num_asked >= 3, "three tries")
        receiver.status = 200
        tries = receiver.num_asked
        reached(lambda: SentFile(tmp_path, receiver.url).sent() != {}, "the delivery")
        assert receiver.num_asked <= tries + 2 and hook.num_dropped == 0


def test_a_redirect_is_refused_and_leads_nowhere(tmp_path: Path) -> None:
    with receiving() as elsewhere:
        to = {"Location": f"http://127.0.0.1:{elsewhere.port}/"}
        with (
            receiving(status=307, headers=to) as receiver,
            hook_to(receiver, tmp_path) as hook,
            capture_logs() as said,
        ):
            hook.put(verdict(1))
            reached(lambda: hook.num_dropped == 1, "that it is dropped")
            hook.put(verdict(2))
            reached(lambda: hook.num_dropped == 2, "that the other is dropped too")
        assert elsewhere.num_asked == 0 and receiver.num_asked == 2
        assert [line["reason"] for line in said] == [
            "it redirects (307); give the address that it redirects to"
        ]


def test_a_slow_server_holds_up_nobody_and_too_much_is_dropped_and_counted(tmp_path: Path) -> None:
    hold = threading.Event()
    with (
        receiving(hold=hold) as slow,
        receiving() as quick,
        contextlib.closing(Notifier([slow.url, quick.url], 0.5, tmp_path)) as notifier,
    ):
        notifier.report(verdict(0))
        reached(lambda: slow.num_asked == 1, "the first at the slow one")
        for number in range(1, MAX_WAITING + 11):
            notifier.report(verdict(number))
        reached(lambda: (verdict(MAX_WAITING + 10).id, 0) in quick.ids(), "the other's last")
        assert slow.got == [] and notifier.num_dropped >= 10
        hold.set()
        reached(lambda: (verdict(MAX_WAITING + 10).id, 0) in slow.ids(), "the last")


def test_a_server_that_does_not_answer_in_time_is_asked_again(tmp_path: Path) -> None:
    hold = threading.Event()
    with receiving(hold=hold) as receiver, hook_to(receiver, tmp_path, answer_s=0.1) as hook:
        with capture_logs() as said:
            hook.put(verdict())
            reached(lambda: receiver.num_asked >= 2, "the second try")
        assert said[0]["reason"] == "it did not answer in time"
        hold.set()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\n" + b"X-Slow: 1\r\n" * 10_000, b"no"])
def test_an_answer_that_trickles_in_or_is_something_else_is_one_that_failed(
    answer: bytes, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, capture_logs() as logs:

        def trickle() -> None:
            client, _ = server.accept()
            with client, contextlib.suppress(OSError):
                client.recv(1 << 16)
                for place in range(0, len(answer), 8):
                    client.sendall(answer[place : place + 8])
                    time.sleep(0.01)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass  # closed with something unread, the connection would be reset

        thread = threading.Thread(target=trickle)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/pa-th"
        hook = Webhook(url, 0.5, SentFile(tmp_path, url), answer_s=0.2)
        hook.put(verdict())
        thread.join(LIMIT_S)
        reached(lambda: bool(logs), "a line of the log")
        hook.close(0.5)
    says = "it did not answer in time" if len(answer) > 2 else "its answer is not one of HTTP"
    assert not thread.is_alive() and logs[0]["reason"] == says


def test_what_waited_for_too_long_is_dropped(tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.close()
    with hook_to(receiver, tmp_path, keep_s=0.05) as hook:
        hook.put(verdict())
        reached(lambda: hook.num_dropped == 1, "that it is dropped")
        with receiving(port=receiver.port) as back:
            hook.put(verdict(2))
            reached(lambda: len(back.got) == 1, "one that comes after the outage")


def test_a_verdict_about_a_name_in_any_script_is_delivered(tmp_path: Path) -> None:
    with receiving() as receiver, hook_to(receiver, tmp_path) as hook:
        hook.put(verdict(id="finding:mount_hung:/mnt/\u6570\u636e#1"))
        hook.put(verdict(2))
        reached(lambda: len(receiver.got) == 2, "both")


PROCESS = """
import sys
from pathlib import Path
from headway.health.journal import read_verdicts
from headway.health.notify.notifier import Notifier
folder = Path(sys.argv[1])
notifier = Notifier([sys.argv[2]], 0.5, folder, read_verdicts(folder / "verdicts.jsonl"))
print("up", flush=True)
sys.stdin.read()
"""


def test_a_killed_monitors_successor_sends_the_rest_and_nothing_twice(tmp_path: Path) -> None:
    file = VerdictFile(tmp_path / "verdicts.jsonl")
    for number in range(4):
        file.append(verdict(number))
    file.append(verdict(9, is_open=False))
    file.close()
    hold = threading.Event()
    with receiving() as receiver:
        command = [sys.executable, "-c", PROCESS, str(tmp_path), receiver.url]
        for times in range(2):
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment()
            ) as child:
                if times == 0:
                    kept = SentFile(tmp_path, receiver.url)
                    reached(lambda: len(receiver.got) >= 2, "some of them")
                    receiver.hold = hold
                    os.kill(child.pid, signal.SIGKILL)
                    child.wait()
                    hold.set()
                    kept = SentFile(tmp_path, receiver.url)
                    assert 1 <= len(kept.sent()) <= 4
                else:
                    reached(lambda: len(SentFile(tmp_path, receiver.url).sent()) == 4, "the rest")
                    child.stdin.close()  # type: ignore[union-attr]
        names = [name for name, _ in receiver.ids()]
        assert set(names) == {verdict(number).id for number in range(4)}
        # the one under way when it was killed may come again, with the same key
        assert len(names) <= 5


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://us3r:pa55@h/pa-th", "its scheme is 'ftp', not http or https"),
        ("alerts.example.com/pa-th", "its scheme is missing"),
        ("https:///pa-th?key=t0ken", "names no host"),
        ("https://h:99999/pa-th", "has a port or a host that is not valid"),
        ("https://h/pa-th t0ken", "contains a space"),
        ("https://us3r:pa55@exa%mple/pa-th", "a host that is not valid"),
        ("https://[::1]x/pa-th", "a host that is not valid"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_secrets(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HealthConfig(notify=("https://h/x", url))
    assert says in str(caught.value) and "address 2 of health.notify" in str(caught.value)
    assert not [secret for secret in SECRETS if secret in str(caught.value)]


def test_only_scheme_host_and_port_of_an_address_are_shown() -> None:
    assert shown("https://us3r:pa55@hooks.example.com:8443/pa-th?key=t0ken#t0ken") == (
        "https://hooks.example.com:8443"
    )
    assert shown("http://[::1]:80/pa-th") == "http://[::1]:80"
