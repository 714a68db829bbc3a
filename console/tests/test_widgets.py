"""The notebook console without a browser: pictures, traits, and buttons pressed from Python."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import DeadlineError, HeadwayError, RemoteError
from headway.common.plan.schedule.actions import Kind
from headway.console.testing import FakeRun
from headway.console.widgets import RunConsole, Session
from headway.console.widgets.session import Picture
from headway.console.widgets.tail import FlightTail
from headway.console.widgets.views import as_cli

PERIOD_S = 0.05


@pytest.fixture
def session(fake: FakeRun) -> Iterator[Session]:
    with Session(fake.run, period_s=PERIOD_S) as made:
        yield made
    assert not made._thread.is_alive()


@pytest.fixture
def console(session: Session) -> Iterator[RunConsole]:
    made = RunConsole(session)
    yield made
    made.close()


def press(console: RunConsole, number: str, operation: str, **options: object) -> dict[str, object]:
    """What the page does when a button is pressed; returns the final answer."""
    told, done = [], threading.Event()

    def hear(change: dict[str, dict[str, object]]) -> None:
        told.append(change["new"])
        if not str(change["new"]["text"]).endswith("..."):
            done.set()

    console.observe(hear, names="answer")
    console.command = {"id": number, "operation": operation, **options}
    done.wait(20)
    console.unobserve(hear, names="answer")
    return told[-1] if told else {}


def table(raw: bytes, columns: int) -> np.ndarray:
    return np.frombuffer(raw, "<f4").reshape(-1, columns)


# ---- session ----------------------------------------------------------------------------------
def test_pictures_come_by_themselves_and_show_what_happened(
    fake: FakeRun, session: Session
) -> None:
    fake.advance(3)
    picture = session.wait_for(lambda p: p.progress.step == 3)
    assert picture.metrics["step"].to_list() == [0, 1, 2]
    assert set(picture.events["rank"]) == {0, 1}
    fake.recover()
    picture = session.wait_for(lambda p: any("back after" in line for line in p.news))
    assert any("rank 1 was killed" in line for line in picture.news)
    (start, end, reason) = picture.bands[0]
    assert end is not None and start <= end and "rank 1" in reason
    restore = picture.events.filter(picture.events["action"] == "RESTORE")["start_ns"].min()
    assert isinstance(restore, int) and start <= restore * 1e-9 <= end, (
        "bands stand on the records' clock"
    )


def test_commands_from_any_thread_reach_the_driver_in_turn(fake: FakeRun, session: Session) -> None:
    futures = []

    def order() -> None:
        futures.append(session.submit("checkpoint"))

    threads = [threading.Thread(target=order) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(future.result(20) for future in futures) == list(range(1, 9))
    assert len(fake.commands) == 8


def test_the_drivers_refusal_comes_back_and_the_pump_lives_on(
    fake: FakeRun, session: Session
) -> None:
    with pytest.raises(RemoteError, match="cannot set lr"):
        session.submit("set", name="lr", value=-1.0).result(20)
    fake.advance()
    assert session.wait_for(lambda p: p.progress.step == 1).progress.step == 1


def test_a_subscriber_that_fails_does_not_stop_the_pictures(
    fake: FakeRun, session: Session
) -> None:
    def fail(picture: Picture) -> None:
        raise ValueError(picture.progress.name)

    session.subscribe(fail)
    fake.advance(2)
    session.wait_for(lambda p: p.progress.step == 2)
    fake.advance(1)
    session.wait_for(lambda p: p.progress.step == 3)
    assert "ValueError" in session.error


def test_waiting_for_what_does_not_come_says_where_the_run_stands(session: Session) -> None:
    with pytest.raises(DeadlineError, match="step 0/40"):
        session.wait_for(lambda p: p.progress.step == 7, timeout_s=0.5)


def test_a_closed_session_takes_no_orders(fake: FakeRun) -> None:
    session = Session(fake.run, period_s=PERIOD_S).start()
    session.close()
    session.close()
    with pytest.raises(HeadwayError, match="closed"):
        session.submit("pause").result(1)


def test_watching_goes_on_over_the_end_of_the_run(fake: FakeRun, session: Session) -> None:
    fake.advance(2)
    session.wait_for(lambda p: len(p.events) > 0)
    fake.finish()
    picture = session.wait_for(lambda p: p.progress.phase == "finished")
    assert len(picture.metrics) == 2 and len(picture.events) > 0


# ---- tail -------------------------------------------------------------------------------------
def test_the_tail_reads_each_record_once_and_closes_the_open_ones(fake: FakeRun) -> None:
    tail = FlightTail(fake.folder.path)
    number = fake._flights[0].begin(int(Kind.SEND_FORWARD), step=0)
    assert tail.read()["end_ns"].null_count() == 1
    fake._flights[0].end(number)
    fake.advance(1)
    events = tail.read()
    assert events["end_ns"].null_count() == 0
    assert not events.select("rank", "sequence").is_duplicated().any()
    assert len(tail.read()) == len(events)


def test_a_record_left_open_by_a_killed_worker_stays_in_sight_and_stops_nothing(
    fake: FakeRun,
) -> None:
    tail = FlightTail(fake.folder.path)
    fake._flights[0].begin(int(Kind.FORWARD), step=0)
    fake.advance(60)  # more records than are looked at again
    tail.read()
    fake.advance(1)
    events = tail.read()
    assert events.filter(events["rank"] == 0)["step"].max() == 60
    assert tail._next[min(tail._next)] == fake._flights[0]._head


def test_the_tail_keeps_only_its_window(fake: FakeRun) -> None:
    tail = FlightTail(fake.folder.path, window_s=0.0)
    fake.advance(3)
    assert len(tail.read()) == 1, "the newest record alone"


# ---- widget -----------------------------------------------------------------------------------
def test_traits_hold_the_picture_as_the_page_draws_it(
    fake: FakeRun, session: Session, console: RunConsole
) -> None:
    fake.evaluate(9.0)
    fake.advance(4)
    fake.recover()
    session.wait_for(
        lambda _: console.facts.get("step") == 5 and "back after" in "".join(console.news)
    )
    curve = table(console.curve, 3)
    assert curve[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert curve[0, 1] == pytest.approx(6.0) and curve[0, 2] == pytest.approx(100_000)
    assert table(console.validation, 2).tolist() == [[0.0, 9.0]]
    bars = table(console.bars, 4)
    assert bars[:, 1].min() == 0 and (bars[:, 2] >= bars[:, 1]).all()
    assert set(bars[:, 0]) == {0.0, 1.0}
    assert float(Kind.STEP) not in bars[:, 3], "the frame would hide the others"
    assert (np.diff(bars[bars[:, 0] == 1, 1]) >= 0).all(), "sorted within a lane"
    assert console.kinds["1"] == "FORWARD"
    (band,) = console.bands
    restore = bars[bars[:, 3] == float(Kind.RESTORE)]
    assert band[0] <= restore[0, 1] + 1e-3 and restore[0, 1] <= band[1] + 1e-3
    assert [rank["rank"] for rank in console.ranks] == [0, 1]
    assert console.facts["step"] == 5 and "generation 1" in console.facts["line"]
    assert any("rank 1 was killed" in line for line in console.news)


def test_a_pressed_button_becomes_one_command_and_shows_its_shell_line(
    fake: FakeRun, session: Session, console: RunConsole
) -> None:
    answer = press(console, "a1", "pause")
    assert answer == {
        "id": "a1",
        "text": "pause: sent",
        "is_error": False,
        "cli": "headway pause fake",
    }
    session.wait_for(lambda p: p.progress.paused)
    press(console, "a2", "set", name="lr", value=3e-4)
    press(console, "a3", "inject", name="worker", fault="kill", rank=1)
    console.command = {"id": "a1", "operation": "pause", "again": True}
    press(console, "a4", "resume")
    sent = [(c.operation, c.name, c.value, c.fault, c.rank) for c in fake.commands]
    assert sent == [
        ("pause", "", 0.0, "", -1), ("set", "lr", 3e-4, "", -1), ("inject", "worker", 0.0, "kill", 1),
        ("resume", "", 0.0, "", -1),
    ]  # fmt: skip


def test_what_the_page_may_not_ask_for_is_refused(fake: FakeRun, console: RunConsole) -> None:
    console.command = {"id": "b1", "operation": "rm -rf"}
    assert console.answer["is_error"] and fake.commands == []
    answer = press(console, "b2", "set", name="lr", value=-3.0)
    assert answer["is_error"] and "cannot set lr" in str(answer["text"])


def test_shell_lines_are_what_the_command_line_takes() -> None:
    assert as_cli("my run", "stop", {}) == "headway stop 'my run'"
    assert as_cli("r", "set", {"name": "lr", "value": 3e-4}) == "headway set r lr=0.0003"
    assert as_cli("r", "inject", {"fault": "stop", "rank": 2}) == "headway inject r stop --rank 2"


def test_closing_the_widget_leaves_the_run_and_ends_its_own_session(fake: FakeRun) -> None:
    console = RunConsole(fake.run, period_s=PERIOD_S)
    console.session.wait_for(lambda _: True)
    console.close()
    assert not console.session._thread.is_alive()
    assert fake.run.live


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = Path(
        RunConsole._esm._path if hasattr(RunConsole._esm, "_path") else RunConsole._esm
    ).read_text()
    assert "http" not in text and "import " not in text
    assert len(text) < 20_000


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to parse it with")
def test_the_page_is_a_module_that_parses(tmp_path: Path) -> None:
    import headway.console.widgets as package

    module = tmp_path / "console.mjs"
    module.write_text((Path(package.__file__ or "").parent / "console.js").read_text())
    assert subprocess.run(["node", "--check", str(module)], check=False).returncode == 0
