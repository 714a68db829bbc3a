"""What a node shows of itself, read from real processes, real files, and recorded /proc trees."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from headway.common.node.exit_record import ExitRecord
from headway.common.node.flight import FlightWriter
from headway.common.node.testing import identity, python_child, read_line, send_line, wait_until
from headway.common.plan.schedule.actions import Kind
from headway.health.agent import AgentOptions, NodeWatch
from headway.health.config import HealthConfig
from headway.health.sources.flight import FlightSource
from headway.health.sources.host import free_bytes, read_host, read_pressure
from headway.health.sources.proc import GONE, read_process, read_pss
from headway.health.sources.train_log import LogTail
from headway.health.sources.workers import WorkerSource

IDLE = "import sys; print('up', flush=True); sys.stdin.read()"


def test_a_process_is_followed_from_sleep_to_stop_to_zombie_to_gone() -> None:
    with python_child(IDLE) as child:
        assert read_line(child) == "up"
        me = identity(child)
        wait_until(lambda: read_process(me.pid, me.start_ticks).state == "S")
        live = read_process(me.pid, me.start_ticks)
        assert live.rss_bytes > 1 << 20 and live.num_threads >= 1 and live.num_fds >= 3
        assert read_pss(me.pid) > 0
        os.kill(me.pid, signal.SIGSTOP)
        wait_until(lambda: read_process(me.pid, me.start_ticks).state == "T")
        os.kill(me.pid, signal.SIGKILL)
        wait_until(lambda: read_process(me.pid, me.start_ticks).state == "Z")
        child.wait()
        assert read_process(me.pid, me.start_ticks) == GONE


def test_a_pid_of_another_start_time_is_somebody_else() -> None:
    mine = read_process(os.getpid())
    assert read_process(os.getpid(), mine.start_ticks).state == "R"
    assert read_process(os.getpid(), mine.start_ticks + 1) == GONE


def test_another_users_process_shows_what_everybody_may_see_and_zeros_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_self: psutil.Process) -> None:
        raise psutil.AccessDenied

    def not_listed(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "listdir", not_listed)
    monkeypatch.setattr(psutil.Process, "memory_full_info", refused)
    found = read_process(os.getpid())
    assert found.rss_bytes > 1 << 20 and found.num_threads >= 1 and found.num_fds == 0
    assert read_pss(os.getpid()) == 0


@pytest.mark.parametrize("pid", [-1, 0, 1 << 30, 1 << 70])
def test_a_number_that_no_process_has_is_gone(pid: int) -> None:
    assert read_process(pid) == GONE


def test_pressure_is_read_from_a_recorded_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "memory").write_text(
        "some avg10=12.50 avg60=1.00 avg300=0.10 total=123\nfull avg10=2.00 avg60=0.10 "
        "avg300=0.00 total=45\n"
    )
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert read_pressure() == {"memory.some": 0.125, "memory.full": 0.02}


def test_the_host_shows_load_memory_and_free_space(tmp_path: Path) -> None:
    host = read_host(free_bytes(tmp_path), tmp_path / "absent")
    assert host.load_1m >= 0
    assert 0 < host.memory_available_bytes < host.memory_total_bytes
    assert host.disk_free_bytes > 0 and host.shm_free_bytes == -1


def test_a_kernel_without_pressure_information_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert read_pressure() == {}
    assert free_bytes(Path("/")) > 0


def test_lines_are_reported_once_with_place_and_rank(tmp_path: Path) -> None:
    tail = LogTail(tmp_path)
    log = tmp_path / "worker-rank-3.log"
    log.write_text("fine\nstep 7 loss: nan\n")
    [hit] = tail.poll(1 << 20)
    assert (hit.rule, hit.rank, hit.offset, hit.inode) == ("nan_loss", 3, 5, log.stat().st_ino)
    assert tail.poll(1 << 20) == []
    with log.open("a") as file:
        file.write('{"loss": NaN, "rank": 9}\n')
    assert [one.rank for one in tail.poll(1 << 20)] == [9]


def test_an_unfinished_line_waits_for_its_end(tmp_path: Path) -> None:
    tail = LogTail(tmp_path)
    log = tmp_path / "a.log"
    log.write_text("step 7 loss: n")
    assert tail.poll(1 << 20) == []
    with log.open("a") as file:
        file.write("an\n")
    assert [hit.line for hit in tail.poll(1 << 20)] == ["step 7 loss: nan"]


def test_truncation_and_rotation_are_survived(tmp_path: Path) -> None:
    tail = LogTail(tmp_path)
    log = tmp_path / "a.log"
    log.write_text("fine " * 100 + "\n")
    tail.poll(1 << 20)
    log.write_text("loss: nan\n")
    assert len(tail.poll(1 << 20)) == 1
    log.rename(tmp_path / "a.log.1")
    log.write_text("CUDA out of memory\n")
    assert [hit.rule for hit in tail.poll(1 << 20)] == ["cuda_oom"]
    log.unlink()
    assert tail.poll(1 << 20) == []


def test_old_news_are_not_told_and_a_successor_goes_on_where_the_tail_stopped(
    tmp_path: Path,
) -> None:
    log, cursors = tmp_path / "a.log", tmp_path / "cursors.json"
    log.write_text("loss: nan\n")
    first = LogTail(tmp_path, cursors=cursors)
    assert first.poll(1 << 20) == []
    with log.open("a") as file:
        file.write("CUDA out of memory\n")
    successor = LogTail(tmp_path, cursors=cursors)
    assert [hit.rule for hit in successor.poll(1 << 20)] == ["cuda_oom"]
    assert LogTail(tmp_path, cursors=cursors).poll(1 << 20) == []
    cursors.write_text("torn{")
    assert LogTail(tmp_path, cursors=cursors).poll(1 << 20) == []


def test_a_flood_is_read_in_portions_without_loss(tmp_path: Path) -> None:
    tail = LogTail(tmp_path)
    (tmp_path / "a.log").write_text("".join(f"step {i} loss: nan\n" for i in range(1000)))
    seen, portions = [], 0
    while hits := tail.poll(4096):
        portions += 1
        seen += [hit.line for hit in hits]
    assert portions > 1 and seen == [f"step {i} loss: nan" for i in range(1000)]


def test_a_line_without_end_fills_no_memory(tmp_path: Path) -> None:
    tail = LogTail(tmp_path)
    (tmp_path / "a.log").write_bytes(b"\0" * 100_000)
    for _ in range(30):
        tail.poll(8192)
    with (tmp_path / "a.log").open("a") as file:
        file.write("\nloss: nan\n")
    assert len(tail.poll(8192)) == 1


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[FlightWriter]:
    made = FlightWriter.create(tmp_path / "flight-2.bin", 2, capacity=64)
    made.set_generation(5)
    yield made
    made.close()


def test_a_ring_tells_step_open_action_and_phase(tmp_path: Path, writer: FlightWriter) -> None:
    source = FlightSource(tmp_path)
    [fresh] = source.read()
    assert (fresh.rank, fresh.generation, fresh.step, fresh.open_kind) == (2, 5, -1, "")
    with writer.record(Kind.STEP, step=7):
        seq = writer.begin(Kind.FORWARD, step=7, micro_batch=3)
        [busy] = source.read()
        assert (busy.open_kind, busy.open_micro_batch, busy.phase, busy.step) == (
            "FORWARD",
            3,
            "step",
            -1,
        )
        writer.end(seq)
    [idle] = source.read()
    assert (idle.open_kind, idle.step) == ("", 7) and idle.step_s > 0
    with writer.record(Kind.EVAL, step=7):
        # more than the ring holds: the open evaluation itself has been overwritten
        for _ in range(200):
            with writer.record(Kind.FORWARD):
                pass
            assert source.read()[0].head > idle.head
        seq = writer.begin(Kind.FORWARD)
        [evaluating] = source.read()
        assert evaluating.open_kind == "FORWARD"
        writer.end(seq)
    source.close()


def test_an_open_evaluation_is_seen_under_the_actions_inside_it(
    tmp_path: Path, writer: FlightWriter
) -> None:
    source = FlightSource(tmp_path)
    with writer.record(Kind.EVAL):
        source.read()
        for _ in range(10):
            with writer.record(Kind.FORWARD):
                pass
        seq = writer.begin(Kind.FORWARD)
        assert source.read()[0].phase == "eval"
        writer.end(seq)
    assert source.read()[0].phase == "step"
    source.close()


def test_age_counts_from_the_last_movement_of_the_ring(
    tmp_path: Path, writer: FlightWriter
) -> None:
    now_ns = [0]
    source = FlightSource(tmp_path, clock_ns=lambda: now_ns[0])
    seq = writer.begin(Kind.FORWARD)
    begun_ns = int(writer_start_ns(tmp_path))
    now_ns[0] = begun_ns + 3_000_000_000
    assert source.read()[0].age_s == pytest.approx(3.0)
    now_ns[0] += 1_000_000_000
    assert source.read()[0].age_s == pytest.approx(4.0)
    writer.end(seq)
    assert source.read()[0].age_s < 4.0
    source.close()


def writer_start_ns(folder: Path) -> int:
    from headway.common.node.flight import FlightReader

    reader = FlightReader(folder / "flight-2.bin")
    last = reader.last()
    assert last is not None
    reader.close()
    return last.start_ns


def test_what_a_dead_generation_left_open_is_not_open(tmp_path: Path, writer: FlightWriter) -> None:
    source = FlightSource(tmp_path)
    writer.begin(Kind.RECV_FORWARD)
    assert source.read()[0].open_kind == "RECV_FORWARD"
    writer.set_generation(6)
    assert source.read()[0].open_kind == ""
    source.close()


def test_steps_recorded_only_at_their_end_last_since_the_one_before(
    tmp_path: Path, writer: FlightWriter
) -> None:
    source = FlightSource(tmp_path)
    for step in range(2):
        with writer.record(Kind.FORWARD):
            begun_ns = writer_start_ns(tmp_path)
            wait_until(lambda since=begun_ns: time.monotonic_ns() - since > 20_000_000)  # type: ignore[misc]
        with writer.record(Kind.STEP, step=step):
            pass
    assert source.read()[0].step_s > 0.015
    source.close()


def test_steps_are_counted_and_their_median_taken_within_the_generation(
    tmp_path: Path, writer: FlightWriter
) -> None:
    source = FlightSource(tmp_path, window_steps=3)
    for step in range(5):
        with writer.record(Kind.STEP, step=step):
            begun_ns = writer_start_ns(tmp_path)
            wait_until(
                lambda since=begun_ns, ms=2 + 3 * step: time.monotonic_ns() - since > ms * 1_000_000
            )  # type: ignore[misc]
        if step == 2:
            source.read()
    [five] = source.read()
    assert (five.num_steps, five.step) == (5, 4) and 0.011 <= five.median_step_s <= five.step_s
    late = FlightSource(tmp_path, window_steps=3)
    assert late.read()[0].num_steps == 5 and late.read()[0].median_step_s == five.median_step_s
    writer.set_generation(6)
    for one in (source, late):
        [fresh] = one.read()
        assert (fresh.num_steps, fresh.median_step_s, fresh.step) == (0, 0.0, 4)
        one.close()
    later = FlightSource(tmp_path, window_steps=3)
    assert later.read()[0].num_steps == 0
    later.close()


@pytest.mark.usefixtures("writer")
def test_rings_come_and_go(tmp_path: Path) -> None:
    source = FlightSource(tmp_path)
    (tmp_path / "flight-9.bin").write_bytes(b"no ring")
    assert [one.rank for one in source.read()] == [2]
    (tmp_path / "flight-9.bin").unlink()
    other = FlightWriter.create(tmp_path / "flight-0.bin", 0, capacity=64)
    assert [one.rank for one in source.read()] == [0, 2]
    other.close()
    (tmp_path / "flight-0.bin").unlink()
    assert [one.rank for one in source.read()] == [2]
    source.close()


WORKER = """
import sys
from pathlib import Path
from headway.common.node.flight import FlightWriter
from headway.common.node.exit_record import ExitRecord
folder = Path(sys.argv[1])
writer = FlightWriter.create(folder / "flight-0.bin", 0, capacity=64)
print("up", flush=True)
code = int(sys.stdin.readline())
ExitRecord(folder / "words-anything.bin").write(code, "said goodbye")
sys.exit(code)
"""


def test_a_new_process_of_a_rank_shows_its_own_open_action(
    tmp_path: Path, writer: FlightWriter
) -> None:
    source = FlightSource(tmp_path)
    writer.begin(Kind.RECV_FORWARD)
    assert source.read()[0].open_kind == "RECV_FORWARD"
    code = (
        "import sys; from pathlib import Path; from headway.common.node.flight import "
        "FlightWriter\n"
        "writer = FlightWriter.create(Path(sys.argv[1]), 2, capacity=64)\n"
        "print('up', flush=True); sys.stdin.readline()\n"
        "writer.begin(18); print('joining', flush=True); sys.stdin.read()"
    )
    with python_child(code, tmp_path / "flight-2.bin") as child:
        assert read_line(child) == "up"
        [fresh] = source.read()
        assert (fresh.pid, fresh.open_kind) == (child.pid, "") and fresh.age_s < 1
        send_line(child, "")
        assert read_line(child) == "joining"
        assert [(one.open_kind, one.phase) for one in source.read()] == [("JOIN", "join")]
    source.close()


def test_the_last_words_of_another_process_excuse_nobody(tmp_path: Path) -> None:
    words = ExitRecord(tmp_path / "words-0.bin")
    words.write(0, "finished")
    words.close()
    source = WorkerSource(tmp_path, HealthConfig())
    with python_child(WORKER, tmp_path) as child:
        assert read_line(child) == "up"
        child.kill()
        child.wait()
        assert source.read()[0].state == "gone"
    source.close()


def test_a_matched_line_is_repeated_for_a_while_and_then_forgotten(tmp_path: Path) -> None:
    options = AgentOptions(
        "", tmp_path / "monitor.json", tmp_path, tmp_path, tmp_path, "0badcafe", 0,
        kmsg=tmp_path / "none",
    )  # fmt: skip
    watch = NodeWatch(options, HealthConfig())
    (tmp_path / "a.log").write_text("loss: nan\n")
    wait_until(lambda: bool(watch.beat().findings), what="the line")
    seen = []
    for now_s in (100.0, 103.0, 104.9, 105.1, 106.0):
        seen.append(len(watch.beat().findings))
        watch.sent(now_s)
    assert seen == [1, 1, 1, 1, 0]
    watch.close()


@pytest.mark.parametrize(("code", "state"), [(0, "done"), (3, "gone")])
def test_last_words_tell_an_orderly_end_from_a_failure(
    tmp_path: Path, code: int, state: str
) -> None:
    source = WorkerSource(tmp_path, HealthConfig())
    with python_child(WORKER, tmp_path) as child:
        assert read_line(child) == "up"
        wait_until(lambda: source.read()[0].pss_bytes > 0, what="its proportional memory")
        [live] = source.read()
        assert live.pid == child.pid and live.state in "RS" and live.exit_code is None
        send_line(child, str(code))
        child.wait()
        [ended] = source.read()
    assert (ended.state, ended.exit_code, ended.reason) == (state, code, "said goodbye")
    source.close()
