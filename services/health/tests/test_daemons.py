"""Agent and monitor as real processes over real sockets, watching real
workers stopped and killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator

import polars as pl
import pytest
from headway.common.node.event_files import COLUMNS, event_files, from_columns
from headway.common.node.flight import FlightReader
from headway.common.node.testing import child_environment, python_child, read_line, send_line
from headway.health.announce import Address, read_address
from headway.health.client import verdicts_of
from headway.health.journal import read_verdicts
from headway.testkit.played.health_bench import RUN_ID, Bench, health_bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    with health_bench() as made:
        yield made


def test_a_killed_worker_is_told_to_the_driver_and_written_down(bench: Bench) -> None:
    bench.driver(), bench.monitor(), bench.agent()
    with bench.worker(0) as survivor, bench.worker(1) as victim:
        assert read_line(survivor) == read_line(victim) == "up"
        bench.wait_for_ranks(2)
        assert bench.verdicts == []
        os.kill(victim.pid, signal.SIGKILL)
        bench.wait(lambda: bool(bench.verdicts), "a verdict")
        [verdict] = bench.news()
        assert (verdict.kind, verdict.node, verdict.rank, verdict.pid) == (
            "crash",
            4,
            1,
            victim.pid,
        )
        assert verdict.unix_s > 0 and verdict.remedy and verdict.evidence
        bench.wait(lambda: _taken(bench) == ["noted"], "the answer in the file")
        assert [one.revision for one in read_verdicts(bench.root / "verdicts.jsonl")] == [0, 1]
        with bench.worker(1, generation=1) as newcomer:
            assert read_line(newcomer) == "up"
            bench.wait(lambda: len(bench.news()) == 2, "the end of the episode")
            assert bench.kinds()[1] == ("crash", 1, False) and bench.news()[1].taken == "noted"
            bench.wait(
                lambda: verdicts_of(bench.root, only_open=True) == [],
                "it in the file, written after",
            )


def test_a_stopped_worker_is_told_and_its_going_on_too(bench: Bench) -> None:
    bench.driver(), bench.monitor(), bench.agent()
    with bench.worker(0) as child:
        assert read_line(child) == "up"
        bench.wait_for_ranks(1)
        os.kill(child.pid, signal.SIGSTOP)
        bench.wait(lambda: bool(bench.verdicts), "a verdict")
        os.kill(child.pid, signal.SIGCONT)
        bench.wait(lambda: len(bench.news()) == 2, "the end of the episode")
        assert bench.kinds() == [("stopped", 0, True), ("stopped", 0, False)]
        bench.verdicts.clear()
        bench.driver()  # a new one, which need not hear what is over
        os.kill(child.pid, signal.SIGSTOP)
        bench.wait(lambda: bool(bench.verdicts), "the next verdict")
        assert bench.kinds() == [("stopped", 0, True)]


def test_a_worker_that_lives_but_stands_still_is_silent(bench: Bench) -> None:
    bench.driver(), bench.monitor(), bench.agent()
    with bench.worker(0) as child:
        assert read_line(child) == "up"
        bench.wait_for_ranks(1)
        bench.wait(lambda: int((read_line(child) or "0").split()[-1]) > 3, "the first steps")
        send_line(child, "hang")
        bench.wait(lambda: bool(bench.verdicts), "a verdict")
        assert bench.kinds() == [("silence", 0, True)]
        rows = {row.name: row.value for row in bench.news()[0].evidence}
        assert rows["last_action"].startswith("FORWARD of micro-batch 0")


def test_a_paused_run_and_an_orderly_end_are_no_trouble(bench: Bench) -> None:
    bench.driver(), bench.monitor(), bench.agent("--metrics-port", "0")
    with bench.worker(0) as paused, bench.worker(1) as ending:
        assert read_line(paused) == read_line(ending) == "up"
        bench.wait_for_ranks(2)
        send_line(ending, "end")
        ending.wait()
        send_line(paused, "pause")
        bench.wait_for_ranks(1)
        count = len(bench.beats)
        bench.wait(lambda: len(bench.beats) > count + 12, "two and more silence limits")
        assert bench.verdicts == [] and verdicts_of(bench.root) == []


def test_a_bad_log_line_is_told_once_for_the_whole_episode(bench: Bench) -> None:
    bench.driver(), bench.monitor(), bench.agent()
    bench.wait_for_ranks(0)
    bench.wait(lambda: any(beat.name == "agent" for beat in bench.beats), "the agent")
    with (bench.root / "logs" / "worker-rank-2.log").open("a") as log:
        log.write("all fine\nstep 9 loss: nan\nstep 10 loss: nan\n")
    bench.wait(lambda: bool(bench.verdicts), "a verdict")
    with (bench.root / "logs" / "worker-rank-2.log").open("a") as log:
        log.write("step 11 loss: nan\nOSError: [Errno 28] No space left on device\n")
    bench.wait(lambda: len(bench.news()) == 2, "the second verdict")
    assert bench.kinds() == [("nan_loss", 2, True), ("disk_full", 2, True)]
    assert bench.news()[0].evidence[0].value == "step 9 loss: nan"


def test_a_line_found_while_no_monitor_was_there_is_told_to_the_first(bench: Bench) -> None:
    bench.driver(), bench.agent()
    bench.wait(lambda: any(beat.progress for beat in bench.beats), "the agent's first beat")
    (bench.root / "logs" / "a.log").write_text("loss: nan\n")
    count = len(bench.beats)
    bench.wait(lambda: len(bench.beats) > count + 3, "longer than a line is repeated")
    bench.monitor()
    bench.wait(lambda: bool(bench.verdicts), "a verdict")
    assert bench.kinds() == [("nan_loss", -1, True)]


def test_killed_monitor_and_agent_and_a_new_driver_lose_and_repeat_nothing(bench: Bench) -> None:
    bench.driver()
    monitor, agent = bench.monitor(), bench.agent()
    with bench.worker(0) as survivor, bench.worker(1) as victim:
        assert read_line(survivor) == read_line(victim) == "up"
        bench.wait_for_ranks(2)
        os.kill(victim.pid, signal.SIGKILL)
        bench.wait(lambda: bool(bench.verdicts), "a verdict")
        for daemon in (monitor, agent):
            daemon.kill()
            daemon.wait()
        (bench.root / "monitor.json").unlink()
        bench.monitor(), bench.agent()
        bench.wait_for_ranks(1)
        # until then it is repeated, and the new driver would get the answered revision as well
        bench.wait(lambda: [one.revision for one in verdicts_of(bench.root)] == [1], "an answer")
        bench.verdicts.clear()
        bench.driver()  # a new driver rewrites its file and must learn what stands, and only that
        bench.wait(lambda: bool(bench.verdicts), "what stands")
        assert bench.kinds() == [("crash", 1, True)]
        os.kill(survivor.pid, signal.SIGKILL)
        bench.wait(lambda: len(bench.news()) > 1, "the next verdict")
        assert bench.kinds() == [("crash", 1, True), ("crash", 0, True)]
        bench.wait(
            lambda: [one.revision for one in verdicts_of(bench.root)] == [1, 1],
            "both in the file, each answered once",
        )


def test_sigterm_ends_both_with_code_0_and_no_socket_file(bench: Bench) -> None:
    monitor, agent = bench.monitor(), bench.agent()
    bench.wait(lambda: {beat.name for beat in bench.beats} == {"agent", "monitor"}, "both beats")
    for process in (agent, monitor):
        process.terminate()
        assert process.wait(20) == 0
    assert not (bench.root / "agent.sock").exists()


def test_an_agent_that_ends_saves_the_flight_records_of_its_ranks(bench: Bench) -> None:
    events = bench.root / "events"
    events.mkdir()
    agent = bench.agent("--events", str(events))
    with bench.worker(0) as child:
        assert read_line(child) == "up"
        bench.wait(lambda: any(beat.progress for beat in bench.beats), "the agent's first beat")
        send_line(child, "end")
        child.wait()
        agent.terminate()
        assert agent.wait(60) == 0
    reader = FlightReader(bench.root / "shm" / "flight-0.bin")
    [window] = event_files(events, node=4)
    stored = pl.read_parquet(window.path)
    saved = from_columns({name: stored[name].to_numpy() for name in COLUMNS})
    assert saved["sequence"].tolist() == list(range(reader.header.head))
    reader.close()


def test_ranks_that_end_while_the_agent_saves_their_records_have_not_crashed(bench: Bench) -> None:
    events = bench.root / "events"
    events.mkdir()
    bench.driver(), bench.monitor()
    agent = bench.agent("--events", str(events))
    with bench.worker(0) as child:
        assert read_line(child) == "up"
        bench.wait_for_ranks(1)
        slow = events / f"n4-{0:020d}.npy"
        os.mkfifo(slow)  # whoever reads it waits: a disk that takes its time
        agent.terminate()
        reader_waits = [-1]

        def open_for_writing() -> bool:
            with contextlib.suppress(OSError):  # ENXIO: nobody reads yet
                reader_waits[0] = os.open(slow, os.O_WRONLY | os.O_NONBLOCK)
            return reader_waits[0] >= 0

        bench.wait(open_for_writing, "the last save")
        child.kill()
        child.wait()
        count = len(bench.beats)
        bench.wait(
            lambda: len([b for b in bench.beats[count:] if b.name == "agent"]) > 3,
            "four times what a verdict takes",
        )
        assert agent.poll() is None and bench.verdicts == []
        os.close(reader_waits[0])
        assert agent.wait(60) == 0
    slow.unlink()
    assert [len(pl.read_parquet(window.path)) > 0 for window in event_files(events, 4)] == [True]


def test_beats_to_the_executor_show_progress(bench: Bench) -> None:
    bench.monitor(), bench.agent()
    bench.wait(
        lambda: len([b for b in bench.beats if b.name == "agent" and b.progress]) > 2, "beats"
    )
    seen = [beat.progress for beat in bench.beats if beat.name == "agent"]
    assert seen == sorted(seen) and seen[-1] > seen[0]


@pytest.mark.parametrize("options", [[], ["--rank-metrics"]])
def test_the_exporter_adds_up_the_ranks_and_shows_each_only_on_request(
    bench: Bench, options: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    bench.monitor(), bench.agent("--metrics-port", str(port), *options)
    with bench.worker(0) as child:
        assert read_line(child) == "up"
        bench.wait_for_ranks(1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as reply:
            text = reply.read().decode()
    assert "headway_node_ranks 1.0" in text
    assert "headway_node_ranks_proportional_bytes " in text
    assert "headway_node_load1 " in text
    assert ('headway_rank_step{rank="0"}' in text) == bool(options)


def test_the_monitor_exports_what_it_sees(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    bench.monitor("--metrics-port", str(port)), bench.agent()
    with bench.worker(0) as child:
        assert read_line(child) == "up"
        bench.wait_for_ranks(1)

        def text() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as reply:
                return str(reply.read().decode())

        bench.wait(lambda: "headway_monitor_ranks 1.0" in text(), "the rank to be exported")
        assert "headway_monitor_nodes 1.0" in text()


@pytest.mark.parametrize(
    "arguments",
    [["--bind", "tcp://8.8.8.8:0"], ["--bind", "nonsense"], ["--set", "beat_interval=1"]],
)
def test_bad_input_gets_one_line_and_code_2(bench: Bench, arguments: list[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "headway.health",
        "monitor",
        "--keys",
        str(bench.root / "keys"),
        "--run-dir",
        str(bench.root),
        "--run-id",
        RUN_ID,
        "--announce",
        str(bench.root / "m.json"),
        *arguments,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env=child_environment(), timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and arguments[1].split("=")[0] in done.stderr


def test_garbage_in_the_address_files_is_survived(bench: Bench) -> None:
    (bench.root / "driver.json").write_text("{torn")
    (bench.root / "monitor.json").write_text(
        json.dumps({"endpoint": "nonsense", "server_key": "short"})
    )
    agent = bench.agent()
    with bench.worker(0) as child:
        assert read_line(child) == "up"
        bench.wait(lambda: any(beat.name == "agent" for beat in bench.beats), "the agent")
        bench.monitor()
        bench.wait(
            lambda: read_address(bench.root / "monitor.json") != Address("nonsense", "short"), "it"
        )
        bench.wait_for_ranks(1)
        assert agent.poll() is None


def _taken(bench: Bench) -> list[str]:
    """By the file, which may be written a moment after the driver has been asked."""
    return [one.taken for one in verdicts_of(bench.root)]


LOCKSTEP = """
import sys, time
from pathlib import Path
from headway.common.node.flight import FlightWriter
from headway.common.plan.schedule.actions import Kind
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
writer = FlightWriter.create(folder / f"flight-{rank}.bin", rank, 4096)
writer.set_generation(0)
print("up", flush=True)
for step, seconds in enumerate(sys.stdin):
    with writer.record(Kind.STEP, step=step):
        with writer.record(Kind.FORWARD, step=step, micro_batch=0):
            time.sleep(float(seconds))
    print("done", flush=True)
"""


def test_a_rank_that_stays_slow_has_a_verdict_until_that_is_over(bench: Bench) -> None:
    events = bench.root / "events"
    events.mkdir()
    bench.driver(), bench.monitor("--grid", "1,2,1"), bench.agent("--events", str(events))
    with (
        python_child(LOCKSTEP, bench.root / "shm", 0) as usual,
        python_child(LOCKSTEP, bench.root / "shm", 1) as slow,
    ):
        assert read_line(usual) == read_line(slow) == "up"
        bench.wait_for_ranks(2)

        def trains(seconds: float, until: Callable[[], bool]) -> bool:
            """One step of both, the second of which takes so long."""
            send_line(usual, "0.05")
            send_line(slow, str(seconds))
            assert read_line(usual) == read_line(slow) == "done"
            return until()

        for _ in range(40):
            trains(0.05, lambda: True)
        bench.wait(lambda: trains(0.3, lambda: bool(bench.verdicts)), "a verdict")
        over = ("slow_rank", 1, False)
        bench.wait(lambda: trains(0.05, lambda: bench.kinds()[-1] == over), "that it is over")
        # on a busy machine there may be revisions in between, of nobody else
        assert set(bench.kinds()[:-1]) == {("slow_rank", 1, True)}
        verdict = bench.news()[0]
        assert (verdict.cause, verdict.node, verdict.action) == ("compute", 4, "observe")
        facts = {row.name: row.value for row in verdict.evidence}
        assert facts["finding"].startswith("rank 1 computes slower than its peers")
        assert int(facts["since_step"]) >= 30
