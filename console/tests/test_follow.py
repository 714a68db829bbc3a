"""Staying with a run: lines, Ctrl-C once and twice, and a run that dies."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest
from headway.common.errors import DeadlineError, HeadwayError
from headway.common.wire.messages.health import Evidence, Verdict
from headway.console.live import interrupts, news
from headway.console.live.follow import Follower
from headway.console.live.news import News
from headway.console.live.progress import ProgressReader, clock, read_progress
from headway.console.machine.peak import Peak
from headway.console.run import Run
from headway.console.testing import STEP_S, TOKENS, FakeRun
from headway.health.client import brief_of
from headway.testkit.journal import query

PEAK = Peak("cpu", "made up", 2, {"bf16": 1e12, "fp32": 2e12}, waited=0.0)


class Output(io.StringIO):
    """Runs each expectation's action when its text has been printed."""

    def __init__(self, *script: tuple[str, Callable[[], object]]) -> None:
        super().__init__()
        self._script = list(script)

    def write(self, text: str) -> int:
        count = super().write(text)
        while self._script and self._script[0][0] in self.getvalue():
            # never on the follower's own thread
            threading.Thread(target=self._script.pop(0)[1]).start()
        return count


@pytest.fixture(autouse=True)
def heard_ctrl_c() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored, and so would be the tests' own Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_line_tells_step_loss_rate_utilisation_and_time_left(fake: FakeRun) -> None:
    fake.advance(10)
    progress = read_progress(fake.run, PEAK)
    assert (progress.step, progress.steps, progress.generation) == (10, 40, 0)
    assert progress.tokens_per_s == pytest.approx(TOKENS / STEP_S)
    flops = 6 * (2 * 32 * (4 * 32 + 2 * 128) + 32 * 512) + 6 * 2 * 32 * 32  # per token
    assert progress.mfu == pytest.approx(TOKENS / STEP_S * flops / 2e12)
    assert progress.eta_s is not None
    for part in (
        "step 10/40",
        "loss 5.01",
        "100,000 tokens/s",
        "MFU ",
        "ETA ",
        "generation 0",
        "running",
    ):
        assert part in progress.line()
    json.dumps(progress.record())


def test_while_torch_is_loaded_the_run_is_starting(fake: FakeRun) -> None:
    loading = "loading torch on node 0 (23 s)"
    told = {"phase": "gathering", "is_starting": True, "waiting": loading}
    status = msgspec.structs.replace(fake.run.status(), **told)  # type: ignore[type-var]
    progress = replace(
        read_progress(fake.run), status=status, phase=status.phase, waiting=status.waiting
    )
    assert progress.line().endswith(f"  starting: {loading}")


def test_without_a_peak_utilisation_is_left_out_not_invented(fake: FakeRun) -> None:
    fake.advance(2)
    progress = read_progress(fake.run)
    assert progress.mfu is None and "MFU" not in progress.line()


def test_progress_of_a_run_without_a_driver_comes_from_the_journal(fake: FakeRun) -> None:
    fake.advance(3)
    fake.close()
    progress = read_progress(fake.run)
    assert (progress.phase, progress.step, progress.status) == ("interrupted", 3, None)
    assert progress.eta_s is None, "none of its processes is running"


def test_following_ends_with_the_run_and_tells_its_outcome(fake: FakeRun) -> None:
    fake.advance(2)
    out = Output(("step 2/40", fake.finish))
    assert Follower(fake.run, out=out, every_s=0.1).follow() == "finished"
    lines = out.getvalue().splitlines()
    assert lines[-1].endswith("finished") and "run finished" in lines[-2]


def test_the_last_line_of_progress_is_printed_once(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has its outcome some rounds before its last processes end."""
    fake.advance(2)
    fake.finish()
    looks = iter([True] * 3)
    monkeypatch.setattr(Run, "live", property(lambda _: next(looks, False)))
    out = io.StringIO()
    assert Follower(fake.run, out=out, every_s=0.0).follow() == "finished"
    assert out.getvalue().count("step 2/40") == 1, out.getvalue()


def test_a_recovery_is_one_line_with_its_cause_duration_and_cost(fake: FakeRun) -> None:
    fake.advance(3)
    out = Output(("step 3/40", lambda: fake.recover(back_to=2)), ("back after", fake.finish))
    Follower(fake.run, out=out, every_s=0.1).follow()
    lines = [line for line in out.getvalue().splitlines() if "rank" in line]
    assert len(lines) == 1
    assert re.search(r"rank 1 was killed; back after \d+\.\d s, 1 step repeated$", lines[0])


def test_ctrl_c_stops_the_run_once_and_keeps_following(fake: FakeRun) -> None:
    out = Output(
        ("step 0/40", interrupt),
        ("stopping with a checkpoint", fake.advance),
        ("step 1/40", lambda: fake.finish("stopped")),  # some rounds after the stop was sent
    )
    before = signal.getsignal(signal.SIGINT)
    assert Follower(fake.run, out=out, every_s=0.1).follow(stop_on_interrupt=True) == "stopped"
    assert [command.operation for command in fake.commands] == ["stop"]
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_stops_the_run_also_when_it_ended_the_reader_of_a_pipe(fake: FakeRun) -> None:
    class Broken(Output):
        def write(self, text: str) -> int:
            if "stopping with a checkpoint" in text:
                raise BrokenPipeError
            return super().write(text)

    out = Broken(("step 0/40", interrupt))
    with pytest.raises(BrokenPipeError):
        Follower(fake.run, out=out, every_s=0.1).follow(stop_on_interrupt=True)
    assert [command.operation for command in fake.commands] == ["stop"]


def test_sigterm_is_heeded_as_ctrl_c_is(fake: FakeRun) -> None:
    out = Output(
        ("step 0/40", lambda: os.kill(os.getpid(), signal.SIGTERM)),
        ("command 1: stop", lambda: fake.finish("stopped")),
    )
    before = signal.getsignal(signal.SIGTERM)
    assert Follower(fake.run, out=out, every_s=0.1).follow(stop_on_interrupt=True) == "stopped"
    assert [command.operation for command in fake.commands] == ["stop"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_ctrl_c_before_the_stop_is_accepted_says_that_the_run_goes_on(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver(run: Run) -> int:
        raise DeadlineError(f"{run.name} has no driver yet")

    monkeypatch.setattr(Run, "stop", no_driver)
    monkeypatch.setattr(interrupts, "TOGETHER_S", 0.0)
    out = Output(("step 0/40", interrupt), ("stopping with a checkpoint", interrupt))
    assert Follower(fake.run, out=out, every_s=0.1).follow(stop_on_interrupt=True) == "detached"
    said = out.getvalue()
    watch, stop = fake.run.hint("watch"), fake.run.hint("stop")
    assert f"left fake running; stop it with {stop}; watch it with {watch}" in said


def test_signals_within_a_moment_count_as_one(fake: FakeRun) -> None:
    """``timeout 60 make run``: both of them pass SIGTERM on to headway."""

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)  # the first one has been handled by then: two pending ones would be one
        os.kill(os.getpid(), signal.SIGTERM)

    out = Output(("step 0/40", twice), ("command 1: stop", lambda: fake.finish("stopped")))
    follower = Follower(fake.run, out=out, every_s=0.1)
    assert follower.follow(stop_on_interrupt=True) == "stopped"
    assert "left fake" not in out.getvalue()


def test_a_second_ctrl_c_leaves_a_stopping_run_to_itself_and_says_so(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "TOGETHER_S", 0.0)
    out = Output(("step 0/40", interrupt), ("command 1: stop", interrupt))
    follower = Follower(fake.run, out=out, every_s=0.1)
    assert follower.follow(stop_on_interrupt=True) == "detached"
    said = out.getvalue()
    assert (
        f"left fake, which is stopping with a checkpoint; watch it with {fake.run.hint('watch')}"
        in said
    )
    assert "running;" not in said
    assert fake.run.live and [command.operation for command in fake.commands] == ["stop"]


def test_ctrl_c_while_only_watching_sends_nothing(fake: FakeRun) -> None:
    with pytest.raises(KeyboardInterrupt):
        Follower(fake.run, out=Output(("step 0/40", interrupt)), every_s=0.1).follow()
    assert fake.commands == []


def test_a_run_that_dies_without_an_outcome_is_an_error_with_the_way_back(fake: FakeRun) -> None:
    out = Output(("step 0/40", fake.close))
    with pytest.raises(HeadwayError, match="none of its processes is running"):
        Follower(fake.run, out=out, every_s=0.1).follow()


def test_json_is_one_object_a_line(fake: FakeRun) -> None:
    out = Output(('"step": 0', fake.recover), ("back after", fake.finish))
    Follower(fake.run, out=out, every_s=0.1, as_json=True).follow()
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert told[-1]["phase"] == "finished"
    times = {at for (at,) in query(fake.run, "SELECT unix_s FROM events")}
    events = [line for line in told if "event" in line]
    assert events and {line["unix_s"] for line in events} <= times, (
        "when it happened, not when it was told"
    )


def test_a_hint_can_be_pasted(fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fake.run.hint("watch") == f"`headway watch fake --runs-dir {fake.run.path.parent}`"
    monkeypatch.chdir(fake.run.path.parent.parent)
    assert fake.run.path.parent.name == "runs" and fake.run.hint("stop") == "`headway stop fake`"


def test_a_verdict_is_told_when_it_opens_and_not_when_it_closes(
    fake: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "HOLD_S", 0.0)
    reader = News(fake.run)
    for is_open in (True, False):
        fake.verdict("crash", is_open=is_open)
    assert [line for _, line in reader.read()] == ["verdict: crash on node 0, rank 1; wait"]


def test_a_slow_rank_is_told_in_watch_and_status_and_so_is_its_end(fake: FakeRun) -> None:
    reader, slow = News(fake.run), "rank 1 computes 2.9x its peers since step 3 (node 0)"
    progress = ProgressReader(fake.run)
    assert progress.read().findings == ()
    fake.verdict("slow_rank", is_open=True, finding=slow)
    assert [line for _, line in reader.read()] == [slow]
    for found in (progress.read(), read_progress(fake.run)):
        assert found.findings == (slow,) and found.record()["findings"] == (slow,)
    over = "rank 1 is as fast as its peers again (node 0)"
    fake.verdict("slow_rank", is_open=False, finding=over)
    assert [line for _, line in reader.read()] == [over]
    assert progress.read().findings == read_progress(fake.run).findings == ()


def test_a_hung_rank_is_shown_in_five_lines_with_what_was_done(fake: FakeRun) -> None:
    stack = Evidence(source="stack", name="where", value="shards.py:88 read < loader.py:121 load")
    why = Evidence(source="flight", name="why", value="it never began sum 2041 of the dp group")
    waiting = Evidence(source="flight", name="ranks_waiting", value="7")
    verdict = Verdict(
        id="silence", revision=0, kind="silence", cause="host_stall", is_open=True, run_id="r",
        subject="rank", node=0, rank=1, confidence=0.8, remedy="replace the worker",
        alternatives=(("another reason", 0.2),), since_unix_s=time.time() - 600,
        since_error_s=0.5, evidence=(why, stack, waiting),
    )  # fmt: skip
    progress = ProgressReader(fake.run)
    fake.verdict("silence", is_open=True, diagnosis=brief_of(verdict))
    fake.note("verdict_answered", id="silence", taken="replaced worker n0w1 of rank 1")
    [found] = progress.read().findings
    lines = found.splitlines()
    assert re.fullmatch(
        r"rank 1 on node 0 holds up the run since [\d:]{8} UTC \(10 min\): "
        "it never began sum 2041 of the dp group",
        lines[0],
    )
    assert lines[1:] == [
        "where  shards.py:88 read < loader.py:121 load; 7 ranks wait for it",
        "sure   0.80; or another reason (0.20); done: replaced worker n0w1 of rank 1",
        "do     replace the worker",
    ]
    fake.verdict("silence", is_open=False)
    assert progress.read().findings == ()


def test_a_terminal_gets_a_bar_that_ends_complete(fake: FakeRun) -> None:
    class Terminal(Output):
        def isatty(self) -> bool:
            return True

    fake.advance(40)
    out = Terminal(("40/40", fake.finish))
    assert Follower(fake.run, out=out, every_s=0.1, peak=PEAK).follow() == "finished"
    assert (
        "40/40" in out.getvalue() and "tokens/s" in out.getvalue() and "finished" in out.getvalue()
    )


def test_news_is_told_once_and_from_the_present_unless_asked(fake: FakeRun) -> None:
    fake.recover()
    late, all_of_it = News(fake.run), News(fake.run, since=0)
    assert late.read() == []
    assert len(all_of_it.read()) == 2 and all_of_it.read() == []
    fake.recover()
    assert len(late.read()) == 1


def test_times_are_told_as_a_clock() -> None:
    assert [clock(s) for s in (0, 59.6, 61, 3723)] == ["0:00", "1:00", "1:01", "1:02:03"]


def test_a_run_can_be_waited_for_while_somebody_else_ends_it(fake: FakeRun) -> None:
    ending = threading.Thread(target=fake.finish)
    ending.start()
    assert fake.run.wait(timeout_s=30) == "finished"
    ending.join()
