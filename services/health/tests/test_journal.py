"""The verdict file and the address files."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from headway.common.errors import ConfigError, InputError
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.health import Verdict, VerdictKind
from headway.common.wire.server import Server
from headway.health.announce import Address, FollowedPeer, announce, read_address
from headway.health.causes import CAUSES
from headway.health.client import begin_life, verdicts_of
from headway.health.config import HealthConfig
from headway.health.journal import VerdictFile, read_verdicts
from headway.health.reporter import Reporter
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID
from structlog.testing import capture_logs


def verdict(number: int, revision: int = 0, is_open: bool = True) -> Verdict:
    return Verdict(
        id=f"worker:0:1:2:3#{number}",
        revision=revision,
        kind="crash",
        is_open=is_open,
        run_id=RUN_ID,
        node=0,
    )


def test_what_is_written_is_read_back_and_the_last_revision_counts(tmp_path: Path) -> None:
    file = VerdictFile(tmp_path / "verdicts.jsonl")
    row = [verdict(1), verdict(2), verdict(1, 1, False)]
    for one in row:
        file.append(one)
    file.close()
    assert read_verdicts(tmp_path / "verdicts.jsonl") == row
    assert verdicts_of(tmp_path) == [row[2], row[1]]
    assert verdicts_of(tmp_path, only_open=True) == [row[1]]
    assert (tmp_path / "verdicts.jsonl").stat().st_mode & 0o077 == 0


def test_an_older_revision_that_is_written_late_reopens_nothing(tmp_path: Path) -> None:
    file = VerdictFile(tmp_path / "verdicts.jsonl")
    for one in (verdict(1, 2, False), verdict(1)):
        file.append(one)
    file.close()
    assert verdicts_of(tmp_path, only_open=True) == []
    state = MonitorState(HealthConfig(), RUN_ID)
    state.restore(read_verdicts(tmp_path / "verdicts.jsonl"))
    assert state.open_verdicts() == []


@pytest.mark.parametrize("torn", [b'{"t":"health.verdict/2","id":"wor', b"\xff\xfe", b"[]"])
def test_a_torn_last_line_costs_only_itself(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "verdicts.jsonl"
    file = VerdictFile(path)
    file.append(verdict(1))
    file.close()
    with path.open("ab") as raw:
        raw.write(torn)
    file = VerdictFile(path)
    file.append(verdict(2))
    file.close()
    assert read_verdicts(path) == [verdict(1), verdict(2)]


def test_a_full_disk_costs_lines_and_neither_the_writer_nor_later_ones(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    file = VerdictFile(path)
    file.append(verdict(1))
    with room_for(10, path), pytest.raises(OSError, match=r"space|large"):
        file.append(verdict(2))
    file.append(verdict(3))
    file.close()
    assert read_verdicts(path) == [verdict(1), verdict(3)]


@pytest.mark.parametrize("is_ended", [False, True], ids=["next tick", "end of the monitor"])
def test_what_a_full_disk_did_not_take_is_written_once_there_is_room(
    tmp_path: Path, is_ended: bool
) -> None:
    path = tmp_path / "verdicts.jsonl"
    reporter = Reporter(tmp_path, KeyPair.generate())
    reporter.report([verdict(1), verdict(2)], 0.0)
    with room_for(10, path):
        reporter.report([verdict(1, 1), verdict(1, 2, False), verdict(2, 1)], 1.0)
        reporter.follow_driver(2.0)
    assert [one.is_open for one in verdicts_of(tmp_path)] == [True, True]
    reporter.report([verdict(2, 2)], 3.0)
    if is_ended:
        reporter.close()
    else:
        reporter.follow_driver(4.0)
    assert read_verdicts(path)[2:] == [verdict(2, 2), verdict(1, 2, False)], "the newest, once each"
    if not is_ended:
        reporter.close()
    assert len(read_verdicts(path)) == 4


@contextlib.contextmanager
def room_for(num_bytes: int, path: Path) -> Iterator[None]:
    """A limit of the file's size cuts a line short, as the last block of a disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + num_bytes, before[1]))
        with capture_logs():  # the limit holds for pytest's file of captured lines as well
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_on_a_full_disk_the_file_is_made_with_the_first_verdict_that_finds_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        file = VerdictFile(tmp_path / "verdicts.jsonl")
        with pytest.raises(OSError, match="No space"):
            file.append(verdict(1))
    file.append(verdict(2))
    file.close()
    assert verdicts_of(tmp_path) == [verdict(2)]


def test_no_file_is_no_verdict_and_no_folder_is_bad_input(tmp_path: Path) -> None:
    assert verdicts_of(tmp_path) == []
    with pytest.raises(InputError, match="nowhere"):
        VerdictFile(tmp_path / "nowhere" / "verdicts.jsonl")
    with pytest.raises(InputError, match="nowhere"):
        announce(tmp_path / "nowhere" / "monitor.json", Address("tcp://127.0.0.1:1", ""))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"endpoint": 1}', "null"])
def test_an_address_file_that_says_nothing_is_no_address(tmp_path: Path, content: str) -> None:
    path = tmp_path / "monitor.json"
    assert read_address(path) is None
    path.write_text(content)
    assert read_address(path) is None
    with_peer = FollowedPeer(path, 4, KeyPair.generate())
    assert not with_peer.refresh() and not with_peer.notify(verdict(1))


def test_a_peer_is_followed_to_its_new_address_and_stays_when_the_file_goes(tmp_path: Path) -> None:
    path, heard = tmp_path / "driver.json", []

    def server() -> tuple[Server, Address]:
        keys = KeyPair.generate()
        made = Server("tcp://127.0.0.1:0", {Verdict: lambda one, _: heard.append(one)}, keys=keys)
        return made, Address(made.endpoint, keys.public.decode())

    (first, first_address), (second, second_address) = server(), server()
    peer = FollowedPeer(path, 4, KeyPair.generate())
    announce(path, first_address)
    assert path.stat().st_mode & 0o777 == 0o600
    assert peer.refresh() and not peer.refresh()
    announce(path, first_address)
    assert not peer.refresh(), "the same address written again is no new peer"
    announce(path, second_address)
    assert peer.refresh()
    path.unlink()
    assert not peer.refresh() and peer.notify(verdict(7))
    assert second.socket.poll(20_000)
    second.handle_ready()
    assert heard == [verdict(7)]
    peer.close(), first.close(), second.close()


def test_an_unreachable_peer_never_holds_more_than_a_few_messages(tmp_path: Path) -> None:
    announce(tmp_path / "m.json", Address("tcp://127.0.0.1:9", KeyPair.generate().public.decode()))
    peer = FollowedPeer(tmp_path / "m.json", 4, KeyPair.generate())
    peer.refresh()
    assert sum(peer.notify(verdict(number)) for number in range(100)) <= 8
    peer.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"beat_interval_s": 0.0},
        {"first_steps": 0},
        {"node_silence_s": 0.6},
        {"silence_floor_s": -1.0},
    ],
)
def test_impossible_limits_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        HealthConfig(**wrong)  # type: ignore[arg-type]


def test_the_descriptor_of_the_verdict_file_is_closed(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    VerdictFile(tmp_path / "verdicts.jsonl").close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_is_open_in_the_file_is_closed_where_a_run_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    written = VerdictFile(path)
    for one in (verdict(1), verdict(2), verdict(2, 1, is_open=False)):
        written.append(one)
    written.close()
    begin_life(tmp_path, tmp_path, "*.log", tmp_path)
    assert verdicts_of(tmp_path, only_open=True) == []
    first, second = verdicts_of(tmp_path)
    assert (first.revision, second.revision) == (1, 1), "only what was open is revised"
    assert first.evidence[-1].value == "the run was started again"
    state = MonitorState(HealthConfig(), RUN_ID)
    state.restore(verdicts_of(tmp_path))
    assert state.open_verdicts() == []


def test_verdicts_of_another_version_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    path.write_text('{"t":"health.verdict/1","id":"worker:0:1:2:3#1","revision":0,"node":0}\n')
    with pytest.raises(InputError, match=r"health\.verdict/1, this one writes health\.verdict/2"):
        read_verdicts(path)


def test_verdicts_of_another_version_are_set_aside_where_a_run_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    line = '{"t":"health.verdict/1","id":"worker:0:1:2:3#1","revision":0,"node":0}\n'
    path.write_text(line)
    for _ in range(2):
        begin_life(tmp_path, tmp_path, "*.log", tmp_path)
        assert verdicts_of(tmp_path) == []
        [older] = tmp_path.glob("verdicts-*.jsonl")
        assert older.read_text() == line


def test_each_kind_of_verdict_has_a_cause() -> None:
    assert set(CAUSES) == set(get_args(VerdictKind))
