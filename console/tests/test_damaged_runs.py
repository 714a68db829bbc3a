"""A run whose files are bad is named, in a sentence, and does not hide the others of its folder."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from headway.ckpt_store.client import write_tensors
from headway.common.errors import HeadwayError
from headway.common.wire.messages.executor import Sample
from headway.common.wire.messages.worker import Steer
from headway.console.analysis.clocks import Clocks
from headway.console.analysis.episodes import load_journal, recoveries
from headway.console.cluster import Cluster
from headway.console.folder.samples import samples
from headway.console.lifecycle.launch import keep_epoch
from headway.console.live.news import News
from headway.console.testing import FakeRun
from headway.console.widgets.picture_reader import PictureReader
from headway.controller.client import damaged_of
from headway.controller.journal.journal import Journal
from headway.launch.lease.base import LeaseView
from headway.launch.lease.file import FileLease
from headway.testkit.journal import query

Shell = Callable[..., tuple[int, str, str]]
COMMANDS = (
    ("status", "fake"),
    ("status", "fake", "--json"),
    ("watch", "fake", "--every", "0.1"),
    ("logs", "fake"),
    ("trace", "fake", "-o", "trace.json"),
    ("replay", "fake"),
    ("set", "fake", "lr=1e-3"),
    ("stop", "fake", "--yes"),
    ("stop", "fake", "--now", "--yes"),
    ("fork", "fake", "other", "--step", "0"),
    ("fork", "fake", "third", "--step", "7"),  # not the state of a run
    ("run", "fake", "--detach"),  # the last: it begins a new journal
)
CELLS = (
    "UPDATE facts SET value = {bad} WHERE key = 'outcome'",
    "UPDATE facts SET value = {bad} WHERE key = 'epoch'",
    "UPDATE facts SET key = {bad} WHERE key = 'outcome'",
    "UPDATE generations SET rank_nodes = {bad}",
    "UPDATE commands SET operation = {bad}",
    "UPDATE events SET name = {bad}",
)
"""Each is damaged as by one flipped bit in a text."""


def _garbage(path: Path) -> None:
    path.write_bytes(b"\xa5" * 8192)


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(8192))


def _cut(path: Path) -> None:
    os.truncate(path, 5000)


def _folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _no_nodes(*_: object) -> None:
    raise HeadwayError("nodes are not started", remedy="use a machine")


def _try_all(shell: Shell, commands: Iterable[tuple[str, ...]] = COMMANDS) -> None:
    """A defect would raise, and a command line that is not understood reaches no file."""
    for command in commands:
        code, out, err = shell(*command)
        assert code in (0, 1, 2) and (out or err or command[0] == "logs"), command
        assert "Usage:" not in err and "--help" not in err, (command, err)


@pytest.fixture
def ended(steerable: FakeRun, own_roots: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    """``fake`` as after a power cut, beside a sound run. Resuming it stops short of processes."""
    monkeypatch.chdir(own_roots)
    monkeypatch.setattr("headway.console.lifecycle.launch.measure_peak", lambda *_: None)
    monkeypatch.setattr("headway.console.lifecycle.launch.start", _no_nodes)
    fake = steerable
    state = {"w": np.zeros(8, np.float32)}
    extra = msgspec.msgpack.encode({"command": 1})
    write_tensors(
        fake.folder.checkpoints, {"w": (8,)}, state.__getitem__, extra=extra, run_id="0123abcd"
    )
    fake.advance(3)
    fake.close()
    other = FakeRun(fake.folder.path.parent, name="sound")
    other.advance(2)
    other.close()
    return fake


@pytest.mark.parametrize("damage", [_garbage, _zeros, _cut, _folder])
def test_no_command_ends_in_a_traceback_over_a_damaged_journal(
    ended: FakeRun, shell: Shell, damage: Callable[[Path], None]
) -> None:
    damage(ended.folder.database)
    code, out, _ = shell("runs")
    (line,) = [line for line in out.splitlines() if line.startswith("run fake: its journal ")]
    assert code == 0 and "is damaged (" in line and "`headway run` resumes it" in line
    rows = {row["name"]: row for row in json.loads(shell("runs", "--json")[1])}
    assert rows["sound"]["step"] == 2 and not rows["sound"]["trouble"]
    assert rows["fake"]["state"] == "interrupted" and rows["fake"]["trouble"]
    assert "is damaged" in shell("status", "fake")[1]
    _try_all(shell)


@pytest.mark.parametrize("sql", CELLS)
def test_a_cell_that_is_not_utf_8_is_named_and_no_command_ends_in_a_traceback(
    ended: FakeRun, shell: Shell, sql: str
) -> None:
    path = ended.folder.database
    journal = Journal(path, epoch=3)
    journal.begin_generation(9, {0: 0})
    journal.add_command("a", Steer(sequence=0, operation="set", name="lr", value=0.5))
    journal.set_facts(outcome="failed")
    journal.close()
    with contextlib.closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(sql.format(bad="CAST(x'7ba2' AS TEXT)"))
    code, out, _ = shell("runs")
    (line,) = [line for line in out.splitlines() if line.startswith("run fake: its journal ")]
    assert code == 0 and "is damaged (Could not decode" in line
    rows = {row["name"]: row for row in json.loads(shell("runs", "--json")[1])}
    assert rows["sound"]["step"] == 2 and rows["fake"]["state"] == "failed"
    assert "is damaged" in shell("status", "fake")[1]
    _try_all(shell)
    assert damaged_of(path) or ended.run.journal_trouble == ""


@pytest.mark.parametrize("text", ["{", "[]", "7", ""])
def test_an_event_or_a_sample_whose_json_is_damaged_costs_only_itself(
    ended: FakeRun, shell: Shell, text: str
) -> None:
    journal = Journal(ended.folder.database, epoch=3)
    journal.store([Sample(generation=0, step=3, tokens=(1, 2, 3), num_prompt_tokens=1)])
    journal.event("fence", {"reason": "none"}, 1.0)
    journal.event("stepping", {}, 2.0)
    journal.close()
    with contextlib.closing(sqlite3.connect(ended.folder.database)) as raw, raw:
        raw.execute("UPDATE events SET fields = ? WHERE id % 2", (text,))
        raw.execute("UPDATE samples SET tokens = ?", (text,))
    assert load_journal(ended.run).height > 0
    _try_all(shell)
    assert "is damaged" not in shell("status", "fake")[1]


def test_a_json_that_is_not_utf_8_costs_only_itself(fake: FakeRun) -> None:
    """One flipped bit inside a string: SQLite takes it for valid JSON, Python cannot decode it."""
    fake.sample((1, 2, 3))
    fake.recover("rank 1 is lost: killed")
    news, picture = News(fake.run, since=0), PictureReader(fake.run, 20.0)
    _spoil(fake, "events", "fields", "name = 'fence'")
    _spoil(fake, "samples", "tokens", "sequence = 0")
    fake.recover("rank 0 is lost: killed")
    journal = load_journal(fake.run)
    assert journal.height == len(query(fake.run, "SELECT 1 FROM events"))
    assert json.loads(journal.filter(name="fence")["fields"][0]) == {"reason": "ab\ufffd"}
    done = recoveries(fake.run.records.events())
    assert [found["total_s"] is None for found in done.to_dicts()] == [False] * 2
    for _ in range(2):
        fake.advance(1)
        assert any("rank 0" in line for _, line in news.read())
        fake.recover("rank 0 is lost: killed")
    assert len(picture.read().bands) == 4
    picture.close()
    assert [sample["generation"] for sample in samples(fake.run)] == [0]
    assert not fake.run.journal_trouble


@pytest.mark.parametrize("text", ["{", "[]", "CAST(x'ff' AS TEXT)"])
def test_a_page_is_drawn_though_the_json_of_an_event_is_damaged(fake: FakeRun, text: str) -> None:
    fake.recover()
    _spoil(fake, "events", "fields", "name = 'stepping'", text if "(" in text else f"'{text}'")
    fake.recover()
    picture = PictureReader(fake.run, 20.0)
    assert picture.read().number == 1
    picture.close()


def test_a_name_in_the_json_of_an_event_may_be_damaged(fake: FakeRun) -> None:
    fake.recover()
    spoilt = b'{"gener\xe1tion": 1, "source": "arena", "step": 0}'.hex()
    _spoil(fake, "events", "fields", "name = 'generation'", f"CAST(x'{spoilt}' AS TEXT)")
    assert recoveries(fake.run.records.events()).height == 1


def test_the_nodes_of_an_old_generation_may_be_damaged(ended: FakeRun) -> None:
    journal = Journal(ended.folder.database, epoch=3)
    for generation in range(3):
        journal.begin_generation(generation, {0: 0, 1: 1})
    journal.close()
    for generation, text in enumerate(("{broken", "[0]")):
        _spoil(ended, "generations", "rank_nodes", f"generation = {generation}", f"'{text}'")
    ended.folder.bundle.parent.mkdir(exist_ok=True)
    ended.folder.bundle.touch()
    assert Clocks(ended.run).uncertainty_ns() == {0: None, 1: None}


def _spoil(
    fake: FakeRun,
    table: str,
    column: str,
    where: str,
    text: str = "CAST(x'7b22726561736f6e223a226162e3227d' AS TEXT)",
) -> None:
    with contextlib.closing(sqlite3.connect(fake.folder.database)) as raw, raw:
        assert raw.execute(f"UPDATE {table} SET {column} = {text} WHERE {where}").rowcount


def test_the_outcome_of_a_run_is_known_though_its_journal_is_damaged(
    ended: FakeRun, shell: Shell
) -> None:
    _garbage(ended.folder.database)
    (ended.folder.database.parent / "essentials.json").write_text(
        '{"facts": {"outcome": "failed"}}'
    )
    rows = {row["name"]: row["state"] for row in json.loads(shell("runs", "--json")[1])}
    assert rows == {"fake": "failed", "sound": "interrupted"}


@pytest.mark.parametrize("content", [b"", b"\xa5" * 100, b"[]", b"{}", b'{"run_id": 5}'])
def test_a_damaged_run_json_is_named_and_the_other_runs_are_usable(
    ended: FakeRun, shell: Shell, content: bytes
) -> None:
    ended.folder.run_json.write_bytes(content)
    code, out, _ = shell("runs")
    assert code == 0 and "sound" in out and "fake" in out
    _try_all(shell)
    assert Cluster(ended.folder.path.parent).run("sound").completed_steps == 2


@pytest.mark.parametrize("damage", [_garbage, _zeros, _folder])
def test_a_damaged_record_of_the_lease_is_no_traceback(
    ended: FakeRun, shell: Shell, damage: Callable[[Path], None]
) -> None:
    record = ended.folder.control / "driver.json"
    damage(record)
    _try_all(shell, (("runs",), *COMMANDS))
    if record.is_dir():
        record.rmdir()


def test_a_resumed_run_goes_on_above_the_epoch_of_its_journal_when_its_lease_is_lost(
    ended: FakeRun,
) -> None:
    journal = Journal(ended.folder.database, epoch=7)
    journal.lead()
    journal.close()
    for path in ended.folder.control.glob("driver.*"):
        path.unlink()
    for _ in range(2):
        keep_epoch(ended.run)
        assert FileLease(ended.folder.control).look() == LeaseView(7, None)
    assert FileLease(ended.folder.control).claim(7) == 8


def test_a_reader_goes_on_in_the_journal_that_replaces_a_damaged_one(
    fake: FakeRun, own_roots: Path
) -> None:
    from headway.console.analysis.newest import NewestSteps

    fake.advance(5)
    newest = NewestSteps(fake.run)
    assert [step.step for step in newest.update()] == [0, 1, 2, 3, 4]
    for part in fake.folder.path.glob("run.sqlite*"):
        part.rename(part.with_name(f"old-{part.name}"))
    again = FakeRun(own_roots / "other", name="again")
    again.advance(2)
    again.close()
    (again.folder.database).rename(fake.folder.database)
    assert [step.step for step in newest.update()] == [0, 1]
