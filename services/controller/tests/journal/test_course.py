"""Which steps of a journal count, who may read it, and what its readers get."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from headway.common.errors import CorruptError, InputError
from headway.common.wire.messages.executor import Evaluation, StepMetrics
from headway.common.wire.messages.worker import Steer
from headway.controller import client
from headway.controller.journal.course import SUPERSEDE_EVALUATIONS, SUPERSEDE_STEPS
from headway.controller.journal.file import JournalFile
from headway.controller.journal.journal import Journal
from headway.controller.journal.reader import RunJournal
from headway.controller.journal.reads import READS

NAN = float("nan")


def _metrics(step: int, loss: float = 1.0, generation: int = 0) -> StepMetrics:
    return StepMetrics(
        generation=generation,
        step=step,
        loss=loss,
        grad_norm=1.0,
        lr=1e-3,
        tokens=8,
        duration_s=0.1,
        unix_s=float(step),
        skipped=loss != loss,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


@pytest.mark.parametrize("schema", [0, 2])
def test_a_journal_of_another_version_is_refused_by_name_and_stays_as_it_is(
    path: Path, schema: int
) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        database.execute(f"PRAGMA user_version = {schema}")
    before = path.read_bytes()
    refused = pytest.raises(InputError, match=f"schema {schema}, and this version .* schema 1")
    with refused:
        Journal(path, epoch=1)
    with refused:
        JournalFile(path).rows("facts")
    assert path.read_bytes()[100:] == before[100:], "but for the mode in the header"


def test_a_flipped_bit_in_the_number_of_the_schema_refuses_nobody(path: Path) -> None:
    journal = Journal(path, epoch=1)
    journal._db.execute("PRAGMA user_version = 65537")
    journal.close()
    assert JournalFile(path).rows("has_begun") == []
    Journal(path, epoch=2).close()


def test_a_read_for_somebody_elsewhere_ends_at_its_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal(path, epoch=1).close()
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    monkeypatch.setitem(READS, "totals", endless)
    file = JournalFile(path)
    with pytest.raises(InputError, match="interrupted; it may take 0 s"):
        list(file.page("totals", (), 0, 0.05))
    with pytest.raises(InputError, match="there is no read 'SELECT 1'"):
        list(file.page("SELECT 1", (), 0, 1.0))
    assert list(file.page("facts", (), 0, 1.0)) == file.rows("facts")


def test_what_a_newer_generation_goes_back_behind_counts_no_longer(path: Path) -> None:
    journal, read = Journal(path, epoch=1), RunJournal(JournalFile(path).rows)
    journal.store([_metrics(step, NAN if step in (3, 5, 7) else 1.0) for step in range(9)])
    journal.store([Evaluation(generation=0, step=s, loss=s, tokens=1) for s in (2, 5, 6)])
    assert read.skipped_steps() == [3, 5, 7] and journal.num_skipped() == 3
    journal.store([_metrics(5, generation=1)])
    assert read.skipped_steps() == [3], "7 is to be done again too"
    assert [one.step for one in read.evaluations()] == [2, 5], "5 is the state it began with"
    journal.store([_metrics(6, generation=1), _metrics(7, NAN, generation=1)])
    assert read.skipped_steps() == [3, 7] and journal.num_skipped() == 2
    course = [(one.generation, one.step) for one in read.course(4)]
    assert course == [(0, 4), (1, 5), (1, 6), (1, 7)]
    journal.store([_metrics(2, generation=3)])
    late = [_metrics(step, generation=2) for step in (0, 1, 2, 8)]
    journal.store([*late, Evaluation(generation=2, step=3, loss=1.0, tokens=1)])
    assert [(one.generation, one.step) for one in read.course(9)] == [(2, 0), (2, 1), (3, 2)]
    assert read.evaluations() == [], "generation 2 began anew, and 3 before step 3"
    journal.close()


def test_what_is_done_at_each_step_does_not_grow_with_the_run(path: Path) -> None:
    journal = Journal(path, epoch=1)
    for sql, index in ((SUPERSEDE_STEPS, "course_steps"), (SUPERSEDE_EVALUATIONS, "evaluations")):
        (plan,) = journal._db.execute(f"EXPLAIN QUERY PLAN {sql}", (0, 0)).fetchall()
        assert f"{index} (step>?)" in plan[3]
    for read in ("course", "skipped_steps"):
        plans = journal._db.execute(f"EXPLAIN QUERY PLAN {READS[read]}", (1,) * (read == "course"))
        assert all("USING" in plan[3] and "INDEX course_" in plan[3] for plan in plans)
    journal.close()


def test_only_the_first_step_of_a_generation_looks_for_what_it_supersedes(path: Path) -> None:
    """A late report of an older generation must not walk over a million newer rows."""
    journal, seen = Journal(path, epoch=1), list[str]()
    journal.store([_metrics(step) for step in range(5)])
    journal.store([_metrics(3, generation=1)])
    journal._db.set_trace_callback(seen.append)
    journal.store([_metrics(4, generation=1), _metrics(5, generation=0), _metrics(2)])
    assert not [sql for sql in seen if sql.startswith("UPDATE")]
    journal.store([_metrics(4, generation=2)])
    assert len([sql for sql in seen if sql.startswith("UPDATE")]) == 2
    read = RunJournal(JournalFile(path).rows)
    course = [(one.generation, one.step) for one in read.course(9)]
    assert course == [(0, 0), (0, 1), (0, 2), (1, 3), (2, 4)]
    journal.close()


@pytest.mark.parametrize("content", [b"", None])
def test_a_journal_without_tables_is_empty_here_and_elsewhere(
    path: Path, content: bytes | None
) -> None:
    if content is not None:
        path.write_bytes(content)
    file = JournalFile(path)
    assert file.rows("has_begun") == [] and list(file.page("has_begun", (), 0, 1.0)) == []


def test_a_generation_with_a_damaged_rank_costs_only_itself(path: Path) -> None:
    journal = Journal(path, epoch=1)
    for generation in range(2):
        journal.begin_generation(generation, {0: generation})
    damaged = '{"0": 0, "q": 1}'
    journal._db.execute("UPDATE generations SET rank_nodes = ? WHERE generation = 0", (damaged,))
    found = RunJournal(JournalFile(path).rows).generations()
    assert [(generation, nodes) for generation, _, nodes in found] == [(1, {0: 1})]
    journal.close()


def test_a_word_that_is_no_command_has_the_journal_set_aside(path: Path) -> None:
    """No message could carry it: without this the run would never join again."""
    journal = Journal(path, epoch=1)
    journal.add_command("a", Steer(sequence=0, operation="set", name="lr", value=0.5))
    journal.close()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE commands SET operation = 'sgt'")
    again = Journal(path, epoch=2)
    assert "no command 'sgt'" in again.damage
    assert [one.operation for one in again.commands()] == ["set"], "of the copy"
    again.close()


def test_a_fork_without_the_commands_of_its_checkpoint_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_recorded_of", lambda _: client._Recorded(command=2))
    checkpoint: Any = SimpleNamespace(generation=3)
    with pytest.raises(CorruptError, match="holds 0 of the 2 commands"):
        client.inherit(path.with_name("new.sqlite"), path, checkpoint)
    journal = Journal(path)
    for number in range(3):
        journal.add_command(f"{number}", Steer(sequence=0, operation="set", name="lr", value=0.5))
    journal.close()
    (path.parent / "fork").mkdir()
    client.inherit(path.parent / "fork" / "run.sqlite", path, checkpoint)
    new = Journal(path.parent / "fork" / "run.sqlite")
    assert len(new.commands()) == 2 and new.last_generation() == (3, {})
    new.close()
