"""A console that does not see the folder of the runs, by way of a real gateway."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from headway.common.errors import (
    CorruptError,
    DeadlineError,
    HeadwayError,
    InputError,
    RemoteError,
)
from headway.common.node.testing import child_environment, wait_until
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import Command
from headway.common.wire.messages.gateway import FileFacts, Files, ListFiles, ReadJournal, Rows
from headway.common.wire.server import Server
from headway.console import Cluster, Run
from headway.console.cli import main
from headway.console.gateway.access import Access
from headway.console.gateway.remote_run import RemoteRun, attach
from headway.console.gateway.server import Gateway
from headway.console.testing import SMALL, FakeRun
from headway.health.config import HealthConfig


class Console:
    """A folder for a console elsewhere, and the gateway's process."""

    def __init__(self, folder: Path, runs: Path) -> None:
        self.folder, self.key = folder / "console", folder / "gateway.key"
        self.folder.mkdir()
        self.log = folder / "gateway.log"
        self._runs, self.process = runs, None
        self.start()

    def start(self) -> None:
        words = ["gateway", "--key-file", str(self.key), "--runs-dir", str(self._runs)]
        listen = Access.load(self.key).address if self.key.exists() else "tcp://127.0.0.1:0"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headway.console", *words, "--listen", listen],
                env=child_environment(), stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(lambda: b"listens on" in self.log.read_bytes(), what="the gateway")

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(20.0) == 0
            self.process = None
            self.log.rename(self.log.with_suffix(".before"))

    def headway(self, *words: str) -> int:
        return main([*words, "--runs-dir", str(self.folder)])


@pytest.fixture
def console(fake: FakeRun, tmp_path: Path) -> Iterator[Console]:
    found = Console(tmp_path, fake.folder.path.parent)
    yield found
    found.stop()


def test_of_web_addresses_only_hosts_are_sent(own_roots: Path, tmp_path: Path) -> None:
    health = HealthConfig(notify=("https://bot:pw@chat.example.com/hooks/T0KEN",))
    with contextlib.closing(FakeRun(own_roots, config=replace(SMALL, health=health))) as fake:
        console = Console(tmp_path, own_roots)
        [remote] = Cluster.connect(console.key, console.folder).runs()
        console.stop()
        assert remote.config.health.notify == ("https://chat.example.com",)
        assert replace(remote.config, health=health) == fake.run.config


def test_a_run_elsewhere_shows_what_it_shows_at_home(
    fake: FakeRun, console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.advance(12)
    [remote] = Cluster.connect(console.key, console.folder).runs()
    home = Run(fake.folder.path)
    assert isinstance(remote, RemoteRun) and remote.live and remote.state == "live"
    assert remote.config == home.config and remote.completed_steps == home.completed_steps
    assert remote.metrics().equals(home.metrics()) and remote.journal().equals(home.journal())
    assert remote.status() == home.status()
    assert remote.fetch_records() == []
    assert remote.events().equals(home.events())
    assert console.headway("status", "fake") == 0
    assert "12/40" in capsys.readouterr().out


def test_commands_reach_the_driver_and_refusals_come_back(console: Console) -> None:
    remote = Cluster.connect(console.key, console.folder).run("fake")
    assert remote.set(lr=1e-4) > 0
    assert [one[1] for one in remote._read("commands", ())] == ["set"]
    with pytest.raises(RemoteError, match="cannot set lr to -1"):
        remote.send(Command(id="x", operation="set", name="lr", value=-1.0), timeout_s=5.0)


def test_long_answers_come_in_parts(fake: FakeRun, console: Console) -> None:
    remote = Cluster.connect(console.key, console.folder).run("fake")
    with contextlib.closing(sqlite3.connect(fake.folder.database)) as raw, raw:
        raw.executemany(
            "INSERT INTO events VALUES (NULL, 1, 0, 0, 'long', ?)",
            [(json.dumps({"number": number, "text": "0" * 400}),) for number in range(3000)],
        )
    found = remote.records.events(name="long")
    assert [event.fields["number"] for event in found] == list(range(3000))


def test_a_text_that_is_not_utf_8_costs_only_itself(fake: FakeRun, console: Console) -> None:
    remote = Cluster.connect(console.key, console.folder).run("fake")
    with contextlib.closing(sqlite3.connect(fake.folder.database)) as raw, raw:
        raw.execute("UPDATE events SET fields = CAST(x'7b2261223a22e3227d' AS TEXT) WHERE id = 1")
    assert remote.records.events()[0].fields == {"a": "\ufffd"}
    assert remote.journal().equals(Run(fake.folder.path).journal())
    with contextlib.closing(sqlite3.connect(fake.folder.database)) as raw, raw:
        raw.execute("INSERT INTO facts VALUES ('outcome', CAST(x'7ba2' AS TEXT))")
    with pytest.raises(RemoteError, match="Could not decode"):
        assert remote.outcome


@pytest.mark.parametrize("read", ["DELETE FROM events", "SELECT 1", "facts; DROP TABLE facts", ""])
def test_a_gateway_has_no_reads_but_those_with_a_name(console: Console, read: str) -> None:
    remote = Cluster.connect(console.key, console.folder).run("fake")
    with pytest.raises(RemoteError, match="there is no read"):
        remote._read(read, ())


def test_what_needs_the_runs_own_folder_is_refused(
    console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    Cluster.connect(console.key, console.folder)
    for words in (["fork", "fake", "other"], ["stop", "fake", "--now"], ["replay", "fake"]):
        assert console.headway(*words) == 2
        assert "run fake is on another machine; run the command there" in capsys.readouterr().err
    config = console.folder / "fake" / "config.toml"
    assert main(["run", str(config), "--name", "fake", "--runs-dir", str(console.folder)]) == 2
    assert "is on another machine" in capsys.readouterr().err


def test_without_its_gateway_a_run_elsewhere_is_out_of_reach(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.console.gateway.remote_run.CALL_S", 0.5)
    remote = Cluster.connect(console.key, console.folder).run("fake")
    address = Access.load(console.key).address
    console.stop()
    with pytest.raises(DeadlineError, match=address):
        remote.records.has_begun()
    console.start()
    assert Access.load(console.key).address == address, "the same keys, the same address"
    monkeypatch.setattr("headway.console.gateway.remote_run.CALL_S", 10.0)
    assert remote.records.has_begun()


def test_no_driver_is_the_same_there_as_here(fake: FakeRun, console: Console) -> None:
    remote = Cluster.connect(console.key, console.folder).run("fake")
    fake.close()
    with pytest.raises(DeadlineError):
        remote.status(0.5)


def test_logs_grow_by_what_is_new(fake: FakeRun, console: Console) -> None:
    remote = Cluster.connect(console.key, console.folder).run("fake")
    log = fake.folder.logs / "n0-extra.log"
    log.parent.mkdir(exist_ok=True)
    copy = remote.path / "logs" / log.name
    for text in ("one\n", "one\ntwo\n", "anew\n"):
        log.write_text(text)
        assert remote.fetch_records() == []
        assert copy.read_text() == text
    (fake.folder.logs / "link.log").symlink_to("/etc/hostname")
    remote.fetch_records()
    assert not (remote.path / "logs" / "link.log").exists(), "nothing outside the run is shown"


def test_a_log_that_began_anew_is_read_anew_though_it_is_longer(
    fake: FakeRun, console: Console
) -> None:
    remote = Cluster.connect(console.key, console.folder).run("fake")
    log = fake.folder.logs / "n2-executor.log"
    log.parent.mkdir(exist_ok=True)
    first = "line of the first machine\n" * 300
    for text in (first, first + "it grows\n", "line of the machine that took over\n" * 300):
        log.write_text(text)
        assert remote.fetch_records() == []
        assert (remote.path / "logs" / log.name).read_text() == text


def test_only_what_is_new_of_a_long_log_is_sent(
    fake: FakeRun, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Cluster.connect(console.key, console.folder).run("fake")
    log = fake.folder.logs / "n0-extra.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("a line\n" * 1000)
    remote.fetch_records()
    begun: list[tuple[str, int]] = []
    pieces = RemoteRun._pieces

    def noted(self: RemoteRun, facts: FileFacts, offset: int, gateway: object) -> Iterator[bytes]:
        begun.append((facts.path, offset))
        return pieces(self, facts, offset, gateway)

    monkeypatch.setattr(RemoteRun, "_pieces", noted)
    with log.open("a") as file:
        file.write("one more\n")
    remote.fetch_records()
    assert ("logs/n0-extra.log", 7000) in begun


def test_the_machines_are_asked_once_however_often_a_console_polls(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, may_end = [], threading.Event()

    def fetch(run: Run) -> list[str]:
        asked.append(run.name)
        may_end.wait(30.0)
        return []

    monkeypatch.setattr(Run, "fetch_records", fetch)
    keys = KeyPair.generate()
    gateway = Gateway("tcp://127.0.0.1:0", fake.folder.path.parent, keys, keys.public)
    with gateway._server:
        for _ in range(5):
            assert not gateway._files(ListFiles(run="fake"), b"").is_fetched
        may_end.set()
        wait_until(lambda: gateway._files(ListFiles(run="fake"), b"").is_fetched, what="the copy")
    assert asked == ["fake"]


# ---- keys --------------------------------------------------------------------------------------
def test_only_the_key_of_the_file_is_admitted(console: Console) -> None:
    known = Access.load(console.key)
    stranger = Access.new(known.address, known.server_key.encode(), KeyPair.generate())
    with pytest.raises(DeadlineError), stranger.client() as client:
        client.call(ReadJournal(run="fake", read="has_begun"), Rows, timeout_s=1.0, retries=0)


def test_a_key_file_that_is_not_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gateway.key"
    with pytest.raises(InputError, match="No such file"):
        Access.load(path)
    path.write_text("{}")
    path.chmod(0o644)
    with pytest.raises(InputError, match="other users can read it"):
        Access.load(path)
    path.chmod(0o600)
    for text in ("{}", "[]", "no", json.dumps({"address": "tcp://*:1", "server_key": "k",
                                               "public": "p", "secret": "s"})):  # fmt: skip
        path.write_text(text)
        with pytest.raises(HeadwayError) as error:
            Access.load(path)
        assert isinstance(error.value, CorruptError | InputError) and error.value.remedy


# ---- a gateway that lies -----------------------------------------------------------------------
@pytest.mark.parametrize(
    "path", ["../x", "/etc/x", "logs/../../x", "logs/.x", "config.toml", "logs"]
)
def test_nothing_is_written_elsewhere(console: Console, path: str) -> None:
    remote = Cluster.connect(console.key, console.folder).run("fake")
    known = Access.load(console.key)
    keys = KeyPair.generate()
    facts = FileFacts(path=path, size=1, mtime_ns=0)
    answer = Files(files=(facts,), is_fetched=True)
    before = sorted(console.folder.rglob("*"))
    with Server("tcp://127.0.0.1:0", {ListFiles: lambda *_: answer}, keys=keys) as server:
        Access.new(server.endpoint, keys.public, known.keys).save(remote.path / "gateway.json")
        liar, is_open = RemoteRun(remote.path), True

        def serve() -> None:
            while is_open:
                if server.socket.poll(20):
                    server.handle_ready()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(CorruptError, match="the gateway sent"):
                liar.fetch_records()
        finally:
            is_open = False
            thread.join()
    assert sorted(console.folder.rglob("*")) == before


def test_a_run_of_this_machine_is_not_replaced(console: Console) -> None:
    (console.folder / "fake").mkdir()
    with pytest.raises(InputError, match="already holds a run of this machine"):
        attach(Access.load(console.key), console.folder)
    with pytest.raises(InputError, match="has no run 'absent'"):
        attach(Access.load(console.key), console.folder, "absent")


def test_a_command_names_the_cluster_instead_of_attaching_first(
    fake: FakeRun, console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.advance(12)
    older = fake.folder.path.with_name("older")
    shutil.copytree(fake.folder.path, older, symlinks=True)
    os.utime(older / "run.json", (0, 0))
    gateway = ("--cluster", str(console.key))
    for words in (["status", "fake"], ["status"], ["runs"], ["pause"]):
        shutil.rmtree(console.folder)
        assert console.headway(*gateway, *words) == 0, words
        attached = {path.name for path in console.folder.iterdir()}
        assert attached == ({"fake", "older"} if words == ["runs"] else {"fake"}), words
        assert ("12/40" in capsys.readouterr().out) == (words != ["pause"])
    assert fake.paused
    assert console.headway("status", "fake") == 0, "it is attached"
    assert console.headway(*gateway, "status", "absent") == 2
    assert "has no run 'absent'" in capsys.readouterr().err
    console.stop()
    shutil.rmtree(console.folder / "fake")
    assert console.headway("status", "fake") == 2, "the option is not remembered"


def test_a_run_of_the_same_name_behind_another_gateway_is_not_mistaken_for_it(
    fake: FakeRun, console: Console
) -> None:
    attach(Access.load(console.key), console.folder, "fake")
    record = json.loads(fake.folder.run_json.read_text())
    fake.folder.run_json.write_text(json.dumps(record | {"run_id": "0123abcd"}))
    before = (console.folder / "fake" / "run.json").read_text()
    with pytest.raises(InputError, match="fake holds another run of that name"):
        attach(Access.load(console.key), console.folder)
    assert (console.folder / "fake" / "run.json").read_text() == before
    (console.folder / "fake" / "run.json").write_text("damaged")
    with pytest.raises(InputError, match=r"another run of that name; .* or remove this one"):
        attach(Access.load(console.key), console.folder)


@pytest.mark.parametrize("command", ["run", "attach", "doctor", "cluster", "data"])
def test_a_command_about_this_machine_takes_no_cluster(
    command: str, console: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--cluster", str(console.key), command, "x"]) == 2
    assert capsys.readouterr().err == (
        f"error: headway {command} does not use a gateway; leave `--cluster FILE` out before it\n"
    )


def test_a_cluster_without_runs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    console = Console(tmp_path, tmp_path / "empty")
    try:
        assert console.headway("--cluster", str(console.key), "status") == 2
        assert "there are no runs at the gateway tcp://" in capsys.readouterr().err
        assert console.headway("--cluster", str(console.key), "runs") == 0
        assert "no run" in capsys.readouterr().out
    finally:
        console.stop()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it fails
from headway.console.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_console_without_torch_needs_nothing_but_the_key(fake: FakeRun, console: Console) -> None:
    fake.advance(3)
    for words in (["attach", str(console.key)], ["status", "fake"], ["pause", "fake"],
                  ["logs", "fake"], ["runs"]):  # fmt: skip
        command = [sys.executable, "-c", WITHOUT_TORCH, *words, "--runs-dir", str(console.folder)]
        done = subprocess.run(command, env=child_environment(), capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert fake.paused


def test_two_consoles_attach_at_once(console: Console) -> None:
    words = [sys.executable, "-m", "headway.console", "attach", str(console.key), "--json"]
    both = [
        subprocess.Popen(
            [*words, "--runs-dir", str(console.folder)], env=child_environment(),
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for one in both:
        out, _ = one.communicate(timeout=60)
        [row] = json.loads(out)
        assert one.returncode == 0 and row["name"] == "fake" and row["state"] == "live"
