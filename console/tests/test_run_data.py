"""``Run`` as data, ``Cluster`` as a table, and two runs side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from headway.ckpt_store.client import CheckpointClient
from headway.common.errors import InputError
from headway.common.wire.messages.executor import Evaluation
from headway.console import Cluster, Run, compare
from headway.console.folder.logs import since_unix_s
from headway.console.folder.run_list import age
from headway.console.live.news import News
from headway.console.testing import SMALL, FakeRun
from headway.controller.journal.journal import Journal


def test_metrics_have_one_row_per_step_and_all_attempts_on_request(fake: FakeRun) -> None:
    assert fake.run.metrics().is_empty() and fake.run.evaluations().is_empty()
    fake.advance(4)
    fake.recover(back_to=2)
    fake.advance(3)
    rows = fake.run.metrics()
    assert rows["step"].to_list() == [0, 1, 2, 3, 4, 5]
    assert rows["generation"].to_list() == [0, 0, 1, 1, 1, 1]
    assert len(fake.run.metrics(repeated=True)) == 8


def test_events_journal_and_recoveries(fake: FakeRun) -> None:
    fake.advance(3)
    fake.recover(back_to=1)
    fake.advance(2)
    run = fake.run
    assert set(run.events()["rank"]) == {0, 1}
    assert set(run.events(first_step=1, last_step=2)["step"]) == {1, 2}
    assert "fence" in run.journal()["name"].to_list()
    (row,) = run.recoveries().to_dicts()
    assert (row["step"], row["repeated"], row["reason"]) == (1, 2, "rank 1 is lost: killed")
    assert row["total_s"] >= 0


def test_logs_by_rank_level_age_and_file(fake: FakeRun) -> None:
    def line(ago_s: float, event: str, **fields: object) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago_s))
        return json.dumps({"timestamp": at, "level": "info", "event": event, **fields}) + "\n"

    (fake.folder.logs / "n0-driver.log").write_text(line(4000, "old") + line(3, "new", answer=42))
    (fake.folder.logs / "n0-w1.log").write_text(line(1, "mine", rank=1) + "Traceback\n")
    run = fake.run
    assert run.logs()["event"].to_list() == ["old", "new", "mine", "Traceback"]
    assert run.logs(rank=1)["event"].to_list() == ["mine", "Traceback"]
    assert run.logs(since="1h", name="driver")["event"].to_list() == ["new"]
    assert json.loads(run.logs(since=60)["fields"][0]) == {"answer": 42}
    assert run.logs(level="error").is_empty()
    assert run.logs(level="error").columns == run.logs().columns
    with pytest.raises(InputError, match="no log has 'zzz'"):
        run.logs(name="zzz")
    with pytest.raises(InputError, match="'yesterday' is not a length of time; use for example"):
        run.logs(since="yesterday")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7200), ("1.5d", 129600), (30.0, 30)]
)
def test_lengths_of_time(text: str | float, seconds: float) -> None:
    assert since_unix_s(text, 1e6) == 1e6 - seconds


def test_checkpoints_sample_and_trace(fake: FakeRun, tmp_path: Path) -> None:
    assert fake.run.checkpoints().columns == ["step", "generation", "total_bytes", "path"]
    CheckpointClient(fake.folder.checkpoints).save(7, {"w": np.full(8, 1)})
    assert fake.run.checkpoints()["step"].to_list() == [7]
    assert fake.run.samples().is_empty()
    fake.advance(2)
    out = fake.run.trace(tmp_path / "t.json", steps=(1, 1))
    slices = json.loads(out.read_text())["traceEvents"]
    assert {event["args"]["step"] for event in slices if event["ph"] == "X"} == {1}


def test_the_configuration_is_parsed_again_after_it_has_changed(fake: FakeRun) -> None:
    run = fake.run
    assert run.config is run.config
    text = fake.folder.config.read_text().replace("steps = 40", "steps = 99")
    replacement = fake.folder.config.with_name("new.toml")
    replacement.write_text(text)
    replacement.rename(fake.folder.config)
    assert run.config.train.steps == 99


@pytest.fixture
def other(own_roots: Path) -> FakeRun:
    """An ended run of two steps with another learning rate."""
    optim = dataclasses.replace(SMALL.optim, lr=SMALL.optim.lr * 2)
    made = FakeRun(own_roots / "runs", "other", dataclasses.replace(SMALL, optim=optim))
    made.advance(2)
    made.finish("stopped")
    return made


def test_runs_are_compared_by_step_and_by_configuration(fake: FakeRun, other: FakeRun) -> None:
    fake.advance(3)
    fake.evaluate(5.0)
    table = compare(fake.run, other.run)
    assert table["step"].to_list() == [0, 1, 2]
    assert table["loss_difference"].to_list() == [0.0, 0.0, None]
    assert table["validation_a"].to_list() == [None, None, 5.0]
    assert table["tokens_per_s_b"].is_not_null().to_list() == [True, True, False]
    changed = fake.run.config_diff(other.run)
    lr = SMALL.optim.lr
    assert changed.to_dicts() == [{"key": "optim.lr", "this": str(lr), "other": str(lr * 2)}]
    assert fake.run.config_diff(fake.run).is_empty()


def test_a_notebook_shows_a_run_and_its_siblings(fake: FakeRun, other: FakeRun) -> None:
    fake.advance(2)
    shown = fake.run._repr_html_()
    for part in ("run fake", "live", "2/40", "5.8812"):
        assert part in shown, shown
    assert "headway run" not in shown
    assert "--name other" in other.run._repr_html_(), "a stopped one says how to resume"
    table = Cluster(fake.folder.path.parent)._repr_html_()
    assert table.count("<tr>") == 3 and "other" in table and "stopped" in table
    for text in (shown, table):
        assert "color" not in text and "background" not in text, "the theme's own colours"


def test_html_escapes_what_runs_are_called(own_roots: Path) -> None:
    made = FakeRun(own_roots / "runs", "a&b<i>")
    made.close()
    assert "a&amp;b&lt;i&gt;" in made.run._repr_html_()
    assert "a&amp;b&lt;i&gt;" in Cluster(own_roots / "runs")._repr_html_()


def test_an_empty_cluster_is_an_empty_table(own_roots: Path) -> None:
    cluster = Cluster(own_roots / "none")
    assert "<tbody></tbody>" in cluster._repr_html_()
    assert repr(cluster).endswith("none', 0 runs)")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "just now"), (59, "just now"), (61, "1 min ago"), (7300, "2 h ago"), (2e5, "2 d ago")],
)
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_steps_are_counted_without_reading_all(fake: FakeRun) -> None:
    assert fake.run.completed_steps == 0
    fake.advance(5)
    fake.recover(back_to=3)
    assert fake.run.completed_steps == 4, "as the newest generation has it"
    assert isinstance(fake.run.metrics(), pl.DataFrame)


def test_a_run_of_another_version_is_listed_and_refused_by_name(
    fake: FakeRun, shell: Callable[..., tuple[int, str, str]]
) -> None:
    fake.advance(3)
    fake.finish("stopped")
    with contextlib.closing(sqlite3.connect(fake.folder.database)) as journal:
        journal.execute("DROP VIEW course")
        journal.execute("PRAGMA user_version = 7")
        journal.commit()
    code, out, _ = shell("runs")
    assert code == 0 and "unreadable" in out
    config = str(fake.folder.config)
    for words in (("status",), ("stop",), ("watch",), ("run", config, "--name", "fake")):
        code, _, error = shell(*words)
        assert code == 2 and "has schema 7" in error and "use the version of Headway" in error
        assert "Traceback" not in error


def test_a_loss_that_is_planned_and_asked_for_counts_once(fake: FakeRun) -> None:
    fake.advance(3)
    fake.finish("stopped")
    journal = Journal(fake.folder.database, epoch=9)
    for sequence in (0, 4):
        journal.store([Evaluation(generation=0, step=2, loss=5.5, tokens=1, sequence=sequence)])
    journal.close()
    assert fake.run.evaluations()["loss"].to_list() == [5.5]
    assert fake.run.result(4)["loss"] == 5.5


def test_repeated_steps_are_those_that_the_news_count(fake: FakeRun) -> None:
    fake.advance(10)
    fake.recover("rank 1 is lost: killed", back_to=4)
    fake.advance(3)
    fake.recover("node 1 is lost: evicted", back_to=6)
    assert fake.run.recoveries()["repeated"].to_list() == [6, 2]
    lines = [line for _, line in News(fake.run, since=0).read()]
    assert [line.split(", ")[-1] for line in lines if "back after" in line] == [
        "6 steps repeated",
        "2 steps repeated",
    ]


def test_a_run_that_machines_begin_to_share_is_read_where_its_journal_is_now(
    fake: FakeRun, tmp_path: Path
) -> None:
    """`headway run` looks at the run before it links the folder that all machines share."""
    fake.advance(3)
    fake.close()
    run = Run(fake.folder.path)
    assert run.completed_steps == 3
    shared = tmp_path / "shared"
    shared.mkdir()
    (fake.folder.path / "control").symlink_to(shared)
    assert run.completed_steps == 0
    journal = Journal(shared / "run.sqlite", is_shared=True)
    journal.set_facts(outcome="finished")
    journal.close()
    assert run.outcome == "finished"
