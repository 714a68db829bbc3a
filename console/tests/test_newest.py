"""Readers that take only what is new agree with a look at the whole journal."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.wire.messages.executor import StepMetrics
from headway.console.analysis.curve import MAX_BLOCKS, Curve
from headway.console.analysis.metrics import current, load_metrics
from headway.console.analysis.newest import PACE_STEPS, RATE_STEPS, NewestSteps
from headway.console.live.news import News
from headway.console.live.progress import ProgressReader, read_progress
from headway.console.run import Run
from headway.console.testing import FakeRun
from headway.console.widgets.picture_reader import PictureReader
from headway.controller.client import JournalFile
from headway.controller.journal import file
from headway.controller.journal.journal import Journal
from hypothesis import given, settings
from hypothesis import strategies as st


class Steps:
    """Writes the metrics of a made-up run: ``do`` some steps, ``go_back`` some."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self.step, self.generation = journal, 0, 0
        self._now = 1000.0

    def do(self, number: int = 1, *, loss: float = 2.0) -> None:
        made = []
        for _ in range(number):
            self._now += 1.0 + self.step % 3
            made.append(
                StepMetrics(
                    generation=self.generation, step=self.step, loss=loss, grad_norm=1.0, lr=1e-3,
                    tokens=100 + self.step, duration_s=0.5 + self.step % 7, unix_s=self._now,
                    skipped=not math.isfinite(loss),
                )
            )  # fmt: skip
            self.step += 1
        self._journal.store(made)

    def pause(self, seconds: float) -> None:
        self._now += seconds

    def go_back(self, steps: int) -> None:
        self.generation += 1
        self.step = max(0, self.step - steps)


@pytest.fixture
def idle(fake: FakeRun) -> FakeRun:
    """A run without a driver, whose journal the test writes."""
    fake.close()
    return fake


@pytest.fixture
def steps(idle: FakeRun) -> Iterator[Steps]:
    journal = Journal(idle.folder.database)
    yield Steps(journal)
    journal.close()


def present(run: Run) -> list[int]:
    """Steps of the run's present course, by the whole journal."""
    table = load_metrics(run)
    newest = table.sort("generation", "step").tail(1)["step"].to_list()
    return [step for step in current(table)["step"].to_list() if step <= newest[0]]


plans = st.lists(st.tuples(st.integers(1, 70), st.integers(0, 60)), min_size=1, max_size=6)


@settings(max_examples=15)
@given(plan=plans)
def test_the_newest_steps_are_those_of_the_whole_journal(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("runs")
        patch.setenv("HEADWAY_SHM_ROOT", str(root / "shm"))
        fake = FakeRun(root)
        fake.close()
        run, journal = fake.run, Journal(fake.folder.database)
        made, kept, curve = Steps(journal), NewestSteps(run), Curve()
        for number, back in plan:
            made.do(number)
            curve.add(kept.update())
            fresh, loaded = NewestSteps(run), Curve()
            fresh.update()
            loaded.load(run)
            expected = present(run)
            assert [step.step for step in fresh._steps] == expected[-PACE_STEPS - 1 :]
            assert fresh._steps == kept._steps
            assert [int(point[0]) for point in loaded.points()] == expected
            made.go_back(back)
        journal.close()


def test_rate_and_pace_are_those_of_the_frames(idle: FakeRun, steps: Steps) -> None:
    steps.do(200)
    newest = NewestSteps(idle.run)
    newest.update()
    table = current(load_metrics(idle.run))
    rated = table.tail(RATE_STEPS)
    rate = rated["tokens"].sum() / rated["duration_s"].sum()
    assert newest.tokens_per_s() == pytest.approx(rate)
    gaps = table.tail(PACE_STEPS + 1)["unix_s"].diff().drop_nulls()
    assert newest.seconds_per_step() == pytest.approx(gaps.mean())


def test_a_pause_does_not_spoil_the_eta(idle: FakeRun, steps: Steps) -> None:
    newest = NewestSteps(idle.run)
    assert newest.seconds_per_step() == 0.0
    steps.do(10)
    newest.update()
    usual_s = newest.seconds_per_step()
    steps.pause(9000.0)
    steps.do(10)
    newest.update()
    assert usual_s < newest.seconds_per_step() < 10 * usual_s


def test_steps_that_were_taken_back_do_not_count_as_the_newest(idle: FakeRun, steps: Steps) -> None:
    """A checkpoint far back: 300 steps are gone, two are done again."""
    steps.do(400)
    steps.go_back(300)
    steps.do(2)
    newest = NewestSteps(idle.run)
    newest.update()
    assert newest.last is not None and newest.last.step == 101
    assert [step.step for step in newest._steps] == list(range(101 - PACE_STEPS, 102))
    assert read_progress(idle.run).step == 102


def test_a_second_look_reads_only_new_rows(
    idle: FakeRun, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.do(500)
    reader = ProgressReader(idle.run)
    reader.read()
    rows: list[int] = []
    read = JournalFile.rows

    def counting(
        self: JournalFile, name: str, values: tuple[object, ...] = ()
    ) -> list[tuple[object, ...]]:
        found = read(self, name, values)
        if name in ("steps_stored", "course"):
            rows.append(len(found))
        return found

    monkeypatch.setattr(JournalFile, "rows", counting)
    reader.read()
    assert sum(rows) == 0
    steps.do(3)
    assert reader.read().step == 503 and sum(rows) == 3


def test_what_was_skipped_follows_a_recovery(idle: FakeRun, steps: Steps) -> None:
    reader = ProgressReader(idle.run)
    assert reader.read().last_skipped is None
    steps.do(5)
    steps.do(2, loss=math.nan)
    steps.do(2)
    first = reader.read()
    assert (first.skipped, first.last_skipped) == (2, 6)
    steps.go_back(3)  # to step 6, which was the second one
    steps.do(1)
    assert reader.skipped == [5, 6] and reader.read().last_skipped == 5
    assert idle.run.records.skipped_steps() == reader.skipped == [5]


def test_one_look_opens_the_journal_once(
    idle: FakeRun, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    connect = file.open_to_read

    def counting(path: Path) -> sqlite3.Connection:
        opened.append(connect(path))
        return opened[-1]

    monkeypatch.setattr(file, "open_to_read", counting)
    steps.do(3)
    assert read_progress(idle.run).step == 3 and len(opened) == 1
    reader = PictureReader(idle.run, 20.0)
    opened.clear()
    assert reader.read().progress.step == 3 and len(opened) == 1
    reader.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


def test_a_resumed_run_is_seen_with_its_new_settings(idle: FakeRun, steps: Steps) -> None:
    steps.do(1)
    reader = ProgressReader(idle.run)
    assert reader.read().steps == 40
    text = idle.folder.config.read_text()
    idle.folder.config.write_text(text.replace("steps = 40", "steps = 80"))
    assert "steps = 80" in idle.folder.config.read_text() and reader.read().steps == 80


def test_repeated_steps_are_those_of_the_generation_before(idle: FakeRun, steps: Steps) -> None:
    steps.do(10)
    steps.go_back(4)
    steps.do(1)
    assert idle.run.records.repeated(1, 6) == 4
    steps.go_back(0)
    assert idle.run.records.repeated(2, 7) == 0
    assert idle.run.records.repeated(0, 0) == 0


def test_a_curve_of_any_length_has_few_points_and_the_right_means(
    idle: FakeRun, steps: Steps
) -> None:
    steps.do(3 * MAX_BLOCKS, loss=3.0)
    steps.do(5)
    curve = Curve()
    curve.load(idle.run)
    assert MAX_BLOCKS / 2 <= len(curve.points()) <= MAX_BLOCKS
    assert curve.points()[-1][0] == 3 * MAX_BLOCKS + 4
    assert {point[1] for point in curve.points()[:-2]} == {3.0}
    kept, points = curve.changes()
    assert (kept, len(points)) == (0, len(curve.points()))
    newest = NewestSteps(idle.run)
    newest.update()
    steps.do(1)
    curve.add(newest.update())
    kept, points = curve.changes()
    assert kept >= len(curve.points()) - 2 and len(points) <= 2, "the end alone has changed"


def test_a_growing_curve_doubles_its_blocks(idle: FakeRun, steps: Steps) -> None:
    curve, newest = Curve(), NewestSteps(idle.run)
    newest.update()
    for _ in range(5):
        steps.do(MAX_BLOCKS // 2)
        curve.add(newest.update())
        curve.changes()
    points = curve.points()
    assert len(points) <= MAX_BLOCKS and points[-1][0] == 5 * (MAX_BLOCKS // 2) - 1
    assert [point[0] for point in points] == sorted({point[0] for point in points})
    assert points[-1][4] <= points[-1][5]


def test_a_step_without_a_finite_loss_leaves_a_gap(idle: FakeRun, steps: Steps) -> None:
    steps.do(2)
    steps.do(1, loss=math.inf)
    curve = Curve()
    curve.load(idle.run)
    assert math.isnan(curve.points()[2][1]) or math.isinf(curve.points()[2][1])
    assert curve.points()[1][1] == 2.0


def test_recent_news_begin_at_a_moment_when_all_ranks_stepped(fake: FakeRun) -> None:
    for _ in range(5):
        fake.recover()
    lines = [line for _, line in News.recent(fake.run, 7).read()]
    assert lines and all("back after" in line for line in lines) and len(lines) < 5
    assert News.recent(fake.run, 500).read()[0][1] == "starting"


def test_a_run_without_a_journal_has_nothing_to_read(idle: FakeRun) -> None:
    idle.folder.database.unlink(missing_ok=True)
    progress = read_progress(idle.run)
    assert (progress.step, progress.loss, progress.last_skipped) == (0, None, None)
    curve = Curve()
    curve.load(idle.run)
    assert curve.points() == []


def test_a_superseded_step_that_is_stored_late_is_not_the_newest(
    idle: FakeRun, steps: Steps
) -> None:
    steps.do(15)
    steps.go_back(5)
    steps.do(3)
    newest, curve = NewestSteps(idle.run), Curve()
    curve.add(newest.update())
    steps.generation, steps.step = 0, 15
    steps.do(1)
    curve.add(newest.update())
    assert newest.last is not None and (newest.last.generation, newest.last.step) == (1, 12)
    assert curve.points()[-1][0] == 12
