"""The notebook console without a browser: pictures, traits, and buttons pressed from Python."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import DeadlineError, HeadwayError, RemoteError
from headway.common.plan.schedule.actions import Kind
from headway.common.polling import wait_until
from headway.console.analysis.curve import COLUMNS
from headway.console.testing import FakeRun
from headway.console.widgets import RunConsole, Session
from headway.console.widgets.packing import BAR, NO_MICRO_BATCH
from headway.console.widgets.picture import Picture
from headway.console.widgets.reading import PictureReader
from headway.console.widgets.recipes import as_cli, as_python, recipes

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
    (band,) = picture.bands
    start, end = band.start_s, band.end_s
    assert end is not None and start <= end and "rank 1" in band.reason
    assert "no step repeated; state of step 3 from memory" in band.cost
    restore = picture.events.filter(picture.events["action"] == "RESTORE")["start_ns"].min()
    assert isinstance(restore, int) and start <= restore * 1e-9 <= end, (
        "bands are on the records' clock"
    )
    assert picture.recoveries["total_s"].to_list() == [pytest.approx(end - start)]


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


# ---- widget -----------------------------------------------------------------------------------
def curve_of(state: dict[str, object]) -> np.ndarray:
    return np.frombuffer(state["points"], "<f4").reshape(-1, len(COLUMNS))  # type: ignore[call-overload]


def test_a_page_that_is_loaded_gets_the_whole_picture(fake: FakeRun, console: RunConsole) -> None:
    fake.evaluate(9.0)
    fake.advance(4)
    fake.recover()
    fake.skip()
    assert wait_until(
        lambda: (
            console.facts.get("step") == 6
            and console._picture is not None
            and len(console._picture.points) == 6
            and "back after" in "".join(console.news)
        ),
        20,
    )
    state = console.get_state()
    curve = curve_of(state["full"])
    assert curve[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert curve[0, 1] == pytest.approx(6.0) and curve[0, 2] == pytest.approx(100_000)
    assert curve[0, 4] == curve[0, 5] == pytest.approx(0.01)
    assert np.isnan(curve[5, 1]) and console.skipped == [5]
    assert np.frombuffer(console.validation, "<f4").tolist() == [0.0, 9.0]
    bars = np.frombuffer(state["full"]["bars"], BAR)
    start = state["full"]["base_s"] + bars["start_us"] * 1e-6
    assert set(bars["rank"]) == {0, 1} and set(bars["micro_batch"]) == {0, 1, NO_MICRO_BATCH}
    assert int(Kind.STEP) not in bars["kind"], "the frame would hide the others"
    assert console.kinds["1"] == "FORWARD"
    (band,) = console.bands
    restore = start[bars["kind"] == int(Kind.RESTORE)]
    assert band["start_s"] <= restore[0] + 1e-3 and restore[0] <= band["end_s"] + 1e-3
    assert "rank 1" in band["reason"] and "repeated" in band["cost"]
    ranks = np.frombuffer(console.ranks, "<i4").reshape(-1, 5)
    assert ranks[:, 0].tolist() == [0, 1] and console.statuses == ["running"]
    assert console.facts["step"] == 6 and "generation 1" in console.facts["line"]
    assert any("rank 1 was killed" in line for line in console.news)


def test_later_pictures_send_only_what_is_new_and_add_up_to_the_whole(
    fake: FakeRun, session: Session, console: RunConsole
) -> None:
    session.wait_for(lambda _: console._picture is not None)
    updates: list[dict[str, object]] = []
    console.observe(lambda change: updates.append(change["new"]), names="update")
    for step in range(1, 6):
        fake.advance(1)
        session.wait_for(lambda p, step=step: len(p.points) == step)  # type: ignore[misc]
    expected = 5 * 2 * 5 * BAR.itemsize

    def num_bytes() -> int:
        return sum(len(update["bars"]) for update in updates)  # type: ignore[arg-type, misc]

    assert wait_until(lambda: num_bytes() >= expected, 20)
    console.unobserve_all("update")
    numbers = [int(str(update["number"])) for update in updates]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    points: list[tuple[float, ...]] = []
    for update in updates:
        points[int(str(update["kept"])) :] = [tuple(row) for row in curve_of(update)]
    assert [row[0] for row in points] == [0, 1, 2, 3, 4]
    num_points = sum(len(curve_of(update)) for update in updates)
    assert num_points <= 5 + len(updates), "beside the new ones only the newest, which may grow"
    assert num_bytes() == expected, "each action crosses once"


def test_a_page_that_missed_something_gets_everything_again(
    session: Session, console: RunConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.wait_for(lambda _: console._picture is not None)
    sent: list[object] = []
    monkeypatch.setattr(console, "send_state", lambda key=None: sent.append(key))
    console._handle_custom_msg({"kind": "full"}, [])
    assert sent == ["full"]


def test_what_goes_wrong_is_shown_and_disappears_when_it_works_again(
    console: RunConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(PictureReader, "_read_curve", fail)
        assert wait_until(lambda: console.facts.get("error") == "OSError: the disk is gone", 20)
    assert wait_until(lambda: console.facts.get("error") == "", 20)


def test_the_log_of_the_selected_rank_comes_with_the_picture(
    fake: FakeRun, console: RunConsole
) -> None:
    fake.folder.logs.mkdir(exist_ok=True)
    file = fake.folder.logs / "n0.log"
    line = '{"timestamp": "2026-01-01T00:00:00Z", "level": "info", "event": "%s", "rank": %d}\n'
    file.write_text(line % ("of zero", 0) + line % ("of one", 1))
    console.selected = 1
    assert wait_until(lambda: any("of one" in text for text in console.log), 20)
    assert not any("of zero" in text for text in console.log)
    with file.open("a") as out:
        out.write(line % ("more of one", 1))
    assert wait_until(lambda: any("more of one" in text for text in console.log), 20)
    console.selected = -1
    assert wait_until(lambda: console.log == [], 20)


def test_the_console_shows_the_end_of_a_run_and_stays(
    fake: FakeRun, session: Session, console: RunConsole
) -> None:
    fake.advance(2)
    fake.finish()
    session.wait_for(lambda p: p.progress.phase == "finished")
    assert wait_until(lambda: console.facts.get("is_over") is True, 20)
    assert curve_of(console.get_state()["full"])[:, 0].tolist() == [0, 1], "a reload shows it too"
    assert session._thread.is_alive()


def test_a_pressed_button_becomes_one_command_and_shows_its_shell_line(
    fake: FakeRun, session: Session, console: RunConsole
) -> None:
    answer = press(console, "a1", "pause")
    assert answer == {
        "id": "a1",
        "text": "pause: sent",
        "is_error": False,
        "cli": f"headway pause fake --runs-dir {fake.run.path.parent}",
        "python": f"Cluster('{fake.run.path.parent}').run('fake').pause()",
    }
    session.wait_for(lambda p: p.progress.paused)
    press(console, "a2", "set", name="lr", value=3e-4)
    press(console, "a3", "inject", name="worker", fault="kill", rank=1)
    console.command = {"id": "a1", "operation": "pause", "again": True}
    press(console, "a4", "resume")
    sent = [(c.operation, c.name, c.value, c.fault, c.rank) for c in fake.commands]
    assert sent == [
        ("pause", "", 0.0, "", -1), ("set", "lr", 3e-4, "", -1), ("inject", "worker", 0.0, "kill",
                                                                  1),
        ("resume", "", 0.0, "", -1),
    ]  # fmt: skip


def test_what_the_page_may_not_ask_for_is_refused(fake: FakeRun, console: RunConsole) -> None:
    console.command = {"id": "b1", "operation": "rm -rf"}
    assert console.answer["is_error"] and fake.commands == []
    answer = press(console, "b2", "set", name="lr", value=-3.0)
    assert answer["is_error"] and "cannot set lr" in str(answer["text"])
    answer = press(console, "b3", "set", name="lr", value="fast")
    assert "'fast' is not a number; write the learning rate as 3e-4" in str(answer["text"])
    answer = press(console, "b4", "inject", name="worker", fault="kill", rank=-1)
    assert "no rank is selected" in str(answer["text"]) and fake.commands == []


def test_shell_and_python_lines_name_the_run_from_any_folder() -> None:
    path = Path("/data/my runs/r")
    folder = "--runs-dir '/data/my runs'"
    assert as_cli(path, "stop", {}) == f"headway stop r {folder}"
    assert as_cli(path, "set", {"name": "lr", "value": 3e-4}) == f"headway set r lr=0.0003 {folder}"
    assert (
        as_cli(path, "inject", {"fault": "stop", "rank": 2})
        == f"headway inject r stop --rank 2 {folder}"
    )
    run = "Cluster('/data/my runs').run('r')"
    assert as_python(path, "unset", {"name": "lr"}) == f"{run}.unset('lr')"
    assert (
        as_python(path, "inject", {"fault": "kill", "rank": 1}) == f"{run}.inject('kill', rank=1)"
    )


def test_every_button_has_lines_that_work(fake: FakeRun) -> None:
    from headway.console import Cluster
    from headway.console.cli import app
    from typer.testing import CliRunner

    for shell, python in recipes(fake.run.path).values():
        words = shlex.split(shell.replace("VALUE", "3e-4").replace("RANK", "1"))
        if words[1] == "stop":
            continue  # it waits until the run has ended, which this one does not do by itself
        before = len(fake.commands)
        done = CliRunner().invoke(app, [*words[1:], *(["--yes"] * (words[1] == "inject"))])
        assert done.exit_code == 0, done.output
        exec(python.replace("VALUE", "3e-4").replace("RANK", "1"), {"Cluster": Cluster})
        by_shell, by_python = (
            (c.operation, c.name, c.value, c.fault, c.rank) for c in fake.commands[before:]
        )
        assert by_shell == by_python


def test_closing_the_widget_leaves_the_run_and_ends_its_own_session(fake: FakeRun) -> None:
    console = RunConsole(fake.run, period_s=PERIOD_S)
    console.session.wait_for(lambda _: True)
    console.close()
    assert not console.session._thread.is_alive()
    assert fake.run.live
