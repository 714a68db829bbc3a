"""The notebook console without a browser: pictures, traits, and buttons pressed from Python."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import DeadlineError, HeadwayError, InputError, RemoteError
from headway.common.plan.schedule.actions import Kind
from headway.common.polling import wait_until
from headway.console.analysis.curve import COLUMNS
from headway.console.steering.methods import OPERATIONS
from headway.console.testing import FakeRun
from headway.console.widgets import RunConsole, RunWatcher
from headway.console.widgets.buttons import BUTTONS, Button, button
from headway.console.widgets.packing import BAR, NO_MICRO_BATCH
from headway.console.widgets.picture import Picture
from headway.console.widgets.picture_reader import PictureReader
from headway.console.widgets.tail import Records

PERIOD_S = 0.05


@pytest.fixture
def watcher(fake: FakeRun) -> Iterator[RunWatcher]:
    with RunWatcher(fake.run, period_s=PERIOD_S) as made:
        yield made
    assert not made._thread.is_alive()


@pytest.fixture
def console(watcher: RunWatcher) -> Iterator[RunConsole]:
    made = RunConsole(watcher)
    yield made
    made.close()


def press(
    console: RunConsole, number: str, name: str, rank: int = -1, **fields: str
) -> dict[str, object]:
    """What the page does when a button is pressed; returns the final answer."""
    told, done = [], threading.Event()

    def hear(change: dict[str, dict[str, object]]) -> None:
        told.append(change["new"])
        if not str(change["new"]["text"]).endswith("..."):
            done.set()

    console.observe(hear, names="answer")
    console.command = {"id": number, "button": name, "rank": rank, "fields": fields}
    done.wait(20)
    console.unobserve(hear, names="answer")
    return told[-1] if told else {}


# ---- watcher ----------------------------------------------------------------------------------
def test_pictures_come_by_themselves_and_show_what_happened(
    fake: FakeRun, watcher: RunWatcher
) -> None:
    fake.advance(3)
    picture = watcher.wait_for(lambda p: p.progress.step == 3)
    assert [point[0] for point in picture.points] == [0, 1, 2]
    assert set(Records.merge(picture.kept).ranks) == {0, 1}
    fake.recover()
    picture = watcher.wait_for(lambda p: any("back after" in line for line in p.news))
    (line,) = [line for line in picture.news if "rank 1 was killed" in line]
    assert re.match(r"\d\d:\d\d:\d\d rank 1 was killed", line), "an event has its time"
    (band,) = picture.bands
    start, end = band.start_s, band.end_s
    assert end is not None and start <= end and "rank 1" in band.reason
    assert "no step repeated; state of step 3 from memory" in band.cost
    rows = Records.merge(picture.kept).rows
    restore_ns = int(rows["start_ns"][rows["kind"] == Kind.RESTORE].min())
    assert start <= restore_ns * 1e-9 <= end, "bands are on the records' clock"
    assert band.recovery.total_s == pytest.approx(end - start)


def test_commands_from_any_thread_reach_the_driver_in_turn(
    fake: FakeRun, watcher: RunWatcher
) -> None:
    futures = []

    def order() -> None:
        futures.append(watcher.submit("checkpoint"))

    threads = [threading.Thread(target=order) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(future.result(20) for future in futures) == list(range(1, 9))
    assert len(fake.commands) == 8


def test_the_drivers_refusal_comes_back_and_the_pump_lives_on(
    fake: FakeRun, watcher: RunWatcher
) -> None:
    with pytest.raises(RemoteError, match="node 7 is not there"):
        watcher.submit("evict", node=7).result(20)
    with pytest.raises(InputError, match="cannot set lr"):
        watcher.submit("set", lr=-1.0).result(20)
    fake.advance()
    assert watcher.wait_for(lambda p: p.progress.step == 1).progress.step == 1


def test_a_subscriber_that_fails_does_not_stop_the_pictures(
    fake: FakeRun, watcher: RunWatcher
) -> None:
    def fail(picture: Picture) -> None:
        raise ValueError(picture.progress.name)

    watcher.subscribe(fail)
    fake.advance(2)
    watcher.wait_for(lambda p: p.progress.step == 2)
    fake.advance(1)
    watcher.wait_for(lambda p: p.progress.step == 3)
    assert "ValueError" in watcher.error


def test_waiting_for_what_does_not_come_says_where_the_run_stands(watcher: RunWatcher) -> None:
    with pytest.raises(DeadlineError, match="step 0/40"):
        watcher.wait_for(lambda p: p.progress.step == 7, timeout_s=0.5)


def test_a_closed_watcher_takes_no_orders(fake: FakeRun) -> None:
    watcher = RunWatcher(fake.run, period_s=PERIOD_S).start()
    watcher.close()
    watcher.close()
    with pytest.raises(HeadwayError, match="closed"):
        watcher.submit("pause").result(1)


def test_watching_goes_on_over_the_end_of_the_run(fake: FakeRun, watcher: RunWatcher) -> None:
    fake.advance(2)
    watcher.wait_for(lambda p: len(Records.merge(p.kept)) > 0)
    fake.finish()
    picture = watcher.wait_for(lambda p: p.progress.phase == "finished")
    assert len(picture.points) == 2 and len(Records.merge(picture.kept)) > 0


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
            and console.skipped == [5]
        ),
        20,
    )
    state = console.get_state()
    curve = curve_of(state["full"])
    assert curve[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert curve[0, 1] == pytest.approx(6.0) and curve[0, 2] == pytest.approx(100_000)
    assert curve[0, 4] == curve[0, 5] == pytest.approx(0.01)
    assert np.isnan(curve[5, 1])
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
    fake: FakeRun, watcher: RunWatcher, console: RunConsole
) -> None:
    watcher.wait_for(lambda _: console._picture is not None)
    updates: list[dict[str, object]] = []
    console.observe(lambda change: updates.append(change["new"]), names="update")
    for step in range(1, 6):
        fake.advance(1)
        watcher.wait_for(lambda p, step=step: len(p.points) == step)  # type: ignore[misc]
    expected = 5 * 2 * 5 * BAR.itemsize

    def num_bytes() -> int:
        return sum(len(update["bars"]) for update in updates)  # type: ignore[arg-type, misc]

    def num_steps() -> int:
        return max((int(row[0]) + 1 for update in updates for row in curve_of(update)), default=0)

    assert wait_until(lambda: num_bytes() >= expected and num_steps() == 5, 20)
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
    watcher: RunWatcher, console: RunConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher.wait_for(lambda _: console._picture is not None)
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
    fake: FakeRun, watcher: RunWatcher, console: RunConsole
) -> None:
    fake.advance(2)
    fake.finish()
    watcher.wait_for(lambda p: p.progress.phase == "finished")
    assert wait_until(lambda: console.facts.get("is_over") is True, 20)
    assert curve_of(console.get_state()["full"])[:, 0].tolist() == [0, 1], "a reload shows it too"
    assert watcher._thread.is_alive()


def test_a_pressed_button_becomes_one_command_and_shows_its_shell_line(
    fake: FakeRun, watcher: RunWatcher, console: RunConsole
) -> None:
    answer = press(console, "a1", "pause")
    assert answer == {
        "id": "a1",
        "button": "pause",
        "text": "pause: sent",
        "is_error": False,
        "cli": f"headway pause fake --runs-dir {fake.run.path.parent}",
        "python": "run.pause()",
    }
    watcher.wait_for(lambda p: p.progress.paused)
    press(console, "a2", "set lr", lr=" 3e-4")
    press(console, "a3", "kill rank", rank=1)
    console.command = {"id": "a1", "button": "pause", "again": True}
    press(console, "a4", "resume")
    sent = [(c.operation, c.name, c.value, c.fault, c.rank) for c in fake.commands]
    assert sent == [
        ("pause", "", 0.0, "", -1), ("set", "lr", 3e-4, "", -1), ("inject", "worker", 0.0, "kill",
                                                                  1),
        ("resume", "", 0.0, "", -1),
    ]  # fmt: skip


def test_what_the_page_may_not_ask_for_is_refused(fake: FakeRun, console: RunConsole) -> None:
    console.command = {"id": "b1", "button": "rm -rf"}
    assert console.answer["is_error"] and "unknown button 'rm -rf'" in console.answer["text"]
    refused = [
        ("set lr", "-3", "set lr: cannot set lr to -3; set lr to a number above 0"),
        ("set lr", "1e9", "set lr: lr=1e+09 is more than"),
        ("set lr", "fast", "set lr: lr must be a number, not 'fast'; for example 3e-4 or 0.0003"),
        ("set lr", " ", "set lr: no value for lr; type the learning rate, above 0"),
        ("kill rank", "", "kill rank: no rank is selected; select one first"),
    ]
    for number, (name, text, said) in enumerate(refused):
        answer = press(console, f"b-{number}", name, lr=text)
        assert answer["is_error"] and str(answer["text"]).startswith(said)
    assert fake.commands == []


# ---- buttons ----------------------------------------------------------------------------------
TYPED = {"lr": "3e-4", "prompt": "def it's", "steps": "5", "step": "7"}


def filled(line: str, quote: Callable[[str], str] = str) -> str:
    """What the page makes of a line."""
    for name, value in {**TYPED, "rank": "1"}.items():
        line = line.replace(f"%{name}%", quote(value) if name == "prompt" else value)
    assert "%" not in line
    return line


def test_every_button_has_lines_that_work_in_every_folder(
    steerable: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.console.cli import app
    from typer.testing import CliRunner

    fake = steerable
    for name in ("checkout/runs", "checkout/notebooks"):
        (tmp_path / name).mkdir(parents=True)
    for folder in (fake.run.path.parent, tmp_path / "checkout", tmp_path / "checkout/notebooks"):
        for known in BUTTONS:
            monkeypatch.chdir(folder)
            about = known.described(fake.run.path)
            if known.operation in ("stop", "fork"):
                continue  # one waits for the run's end, the other one makes a new run
            shell, python = filled(about["cli"], shlex.quote), filled(about["python"], repr)
            words = [*shlex.split(shell)[1:], *(["--yes"] * (known.row.asks is not None))]
            monkeypatch.chdir("/")
            before = len(fake.commands)
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, done.output
            exec(python, {"run": fake.run})
            known.row.method(fake.run, **known.read(TYPED, rank=1))
            sent = [(c.operation, c.name, c.value, c.fault, c.rank) for c in fake.commands[before:]]
            assert len(sent) == 3 and len(set(sent)) == 1


def test_what_breaks_or_ends_something_asks_and_drills_are_marked() -> None:
    path = Path("/data/my runs/r")
    about = {known.name: known.described(path) for known in BUTTONS}
    assert {name for name, one in about.items() if one["question"]} == {
        known.name for known in BUTTONS if known.is_drill or known.operation in ("stop", "rollback")
    }
    assert {known.is_drill for known in BUTTONS if known.operation == "inject"} == {True}
    question = "inject kill into the worker of rank %rank% of run r?"
    assert about["kill rank"]["question"] == question
    assert about["stop"]["cli"] == "headway stop r --runs-dir '/data/my runs'"
    assert about["set lr"]["fields"] == [
        {
            "name": "lr",
            "label": "the learning rate, above 0",
            "example": "3e-4",
            "is_text": False,
            "is_optional": False,
        }
    ]
    assert about["unset lr"]["python"] == "run.unset('lr')"


def test_a_new_operation_needs_one_line_for_its_button() -> None:
    known = Button("evict")
    about = known.described(Path("/runs/r"))
    assert about["python"] == "run.evict(%node%)" and about["question"].startswith("take node %n")
    assert about["cli"] == "headway evict r %node% --runs-dir /runs"
    assert known.read({"node": "1"}, rank=-1) == {"node": 1}
    with pytest.raises(InputError, match=r"node must be a whole number, not 'x'; for example 20"):
        known.read({"node": "x"}, rank=-1)
    with pytest.raises(InputError, match="no value for node; type number of the node, from 0"):
        known.read({}, rank=-1)
    assert "duration_s" in [p.name for p in Button("inject", fields=("duration_s",)).typed]
    assert {known.operation for known in BUTTONS} <= set(OPERATIONS)
    assert button("set lr").operation == "set"


def test_closing_the_widget_leaves_the_run_and_ends_its_own_watcher(fake: FakeRun) -> None:
    console = RunConsole(fake.run, period_s=PERIOD_S)
    console.watcher.wait_for(lambda _: True)
    console.close()
    assert not console.watcher._thread.is_alive()
    assert fake.run.live
