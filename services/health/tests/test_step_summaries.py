"""Summaries of steps: what is in one, each step once, losses counted, and its size for 175B."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import polars as pl
import pytest
from headway.common.errors import CorruptError
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import ON_DEVICE, WAITING
from headway.common.node.testing import read_line
from headway.common.plan.collectives import GroupKind, Membership, Op, kind_of
from headway.common.plan.schedule.actions import Kind
from headway.common.wire import codec
from headway.common.wire.messages.summaries import GroupSum, StepSum, StepSummary
from headway.health.slowness.reading import read_rows
from headway.health.sources.flight import FlightSource
from headway.health.step_summaries import (
    MAX_MESSAGES,
    MAX_STEPS_A_MESSAGE,
    MAX_WAITING_STEPS,
    StepSummaries,
)
from headway.health.store import summary_log
from headway.health.store.summary_file import framed, unframed, write_summaries
from headway.health.store.summary_log import SummaryLog
from headway.testkit.played.health_bench import health_bench
from headway.testkit.played.scheduled_rank import ScheduledRank
from structlog.testing import capture_logs

DP = Membership(GroupKind.DP, 4, 2)


class Rank:
    """A rank that writes real records, and the agent's view of it."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self.writer = FlightWriter.create(folder / f"flight-{rank}.bin", rank, 4096)
        self.begin_generation(0)
        self.source = FlightSource(folder)
        self.summaries = StepSummaries(folder, "0" * 8, 3)
        self.sent: list[StepSummary] = []
        self.accepts = True
        self.look()

    def begin_generation(self, generation: int) -> None:
        self.line = self.writer.table.begin(generation, [DP])[DP.line]
        self.writer.set_generation(generation)

    def step(self, step: int, *, flags: int = 0) -> list[int]:
        """One step; returns the records of its passes."""
        passes = []
        with self.writer.record(Kind.STEP, step=step):
            with self.writer.record(Kind.DATA, step=step):
                pass
            for kind in (Kind.FORWARD, Kind.BACKWARD):
                with self.writer.record(kind, step=step, flags=flags) as sequence:
                    passes.append(sequence)
            name = self.line.enter(Op.REDUCE_SCATTER, 100)
            issue = self.writer.begin(int(Kind.REDUCE_SCATTER), step=step, nbytes=100)
            self.writer.name(issue, name)
            self.writer.end(issue)
            with self.writer.record(
                Kind.REDUCE_SCATTER, step=step, flags=WAITING, collective=name, nbytes=100
            ):
                pass
            self.line.leave()
        return passes

    def look(self) -> None:
        def notify(message: StepSummary) -> bool:
            if self.accepts:
                self.sent.append(message)
            return self.accepts

        self.summaries.send(self.source.read(), notify)

    def steps(self) -> list[int]:
        return [one.step for message in self.sent for one in message.steps]

    def close(self) -> None:
        self.source.close()
        self.writer.close()


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


def test_each_step_is_sent_once_with_its_times_and_groups(rank: Rank) -> None:
    rank.step(0)
    rank.look()
    rank.look()
    rank.step(1)
    rank.step(2)
    rank.look()
    assert rank.steps() == [0, 1, 2]
    assert [message.sequence for message in rank.sent] == [1, 2]
    one = rank.sent[0].steps[0]
    assert one.num_passes == 2
    assert 0 < one.own_us + one.data_us <= one.duration_us + 3
    [group] = one.groups
    assert (group.line, group.number, group.num, group.nbytes) == (DP.line, 4, 1, 100)
    assert 0 <= group.first_us == group.last_us <= one.duration_us
    rank.close()


def test_the_steps_of_an_earlier_agent_are_not_sent_again(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.step(0)
    rank.summaries = StepSummaries(tmp_path, "0" * 8, 3)
    rank.look()
    rank.step(1)
    rank.look()
    assert rank.steps() == [1]
    rank.close()


def test_a_step_waits_for_the_times_of_its_device(rank: Rank) -> None:
    passes = rank.step(0, flags=ON_DEVICE)
    rank.look()
    assert rank.steps() == []
    reader = FlightReader(rank.folder / "flight-0.bin")
    for sequence in passes:
        row = reader.at(sequence)
        assert row is not None
        rank.writer.correct(sequence, row.start_ns, row.start_ns + 5_000_000)
    reader.close()
    rank.look()
    assert rank.steps() == [0]
    assert rank.sent[0].steps[0].own_us == pytest.approx(10_000, abs=4)
    rank.step(1, flags=ON_DEVICE)
    rank.begin_generation(1)  # nobody corrects it any more
    rank.step(1)
    rank.look()
    assert rank.steps() == [0, 1, 1]
    rank.close()


def test_a_wait_for_parameters_within_a_pass_is_not_its_own_time(rank: Rank) -> None:
    with rank.writer.record(Kind.STEP, step=0):
        for is_late in (True, False):
            with rank.writer.record(Kind.FORWARD, step=0):
                if is_late:
                    with rank.writer.record(Kind.ALL_GATHER, step=0, flags=WAITING):
                        time.sleep(0.05)
        with rank.writer.record(Kind.REDUCE_SCATTER, step=0, flags=WAITING):
            pass  # behind a pass, not within it
    rank.look()
    one = rank.sent[0].steps[0]
    assert one.duration_us > 50_000 > 25_000 > one.own_us
    assert one.num_passes == 2, "waits are no passes"
    rank.close()


def test_a_step_that_was_broken_off_is_not_one(rank: Rank) -> None:
    with pytest.raises(ValueError, match="off"), rank.writer.record(Kind.STEP, step=0):
        raise ValueError("broken off")
    rank.step(0)
    rank.look()
    assert rank.steps() == [0]
    rank.close()


def test_steps_wait_while_the_monitor_is_away_and_those_beyond_the_limit_are_counted(
    rank: Rank,
) -> None:
    rank.accepts = False
    rank.step(0)
    rank.look()
    one = rank.summaries._waiting[0]
    rank.summaries._waiting.extend([one] * MAX_WAITING_STEPS)
    rank.look()
    assert len(rank.summaries._waiting) == MAX_WAITING_STEPS
    rank.accepts = True
    rank.look()
    rank.look()
    assert [len(message.steps) for message in rank.sent] == [MAX_STEPS_A_MESSAGE] * 2 * MAX_MESSAGES
    assert [message.num_dropped for message in rank.sent] == [1] + [0] * (2 * MAX_MESSAGES - 1)
    rank.close()


# ---- the monitor's side ----------------------------------------------------------------------
def summary(
    sequence: int, *, node: int = 0, pid: int = 1, run_id: str = "0" * 8, dropped: int = 0
) -> StepSummary:
    step = StepSum(
        rank=node,
        generation=0,
        step=sequence,
        sequence=7 * sequence,
        start_ns=10**9 * sequence,
        duration_us=1000,
        own_us=600,
        data_us=10,
        snapshot_us=0,
        collection_us=0,
        norm_us=100,
        optimizer_us=90,
        groups=(GroupSum(4, 0, 2, 50, 1 << 40, 10, 900), GroupSum(8, 0, 1, 5, 4, 950, 950)),
        num_passes=6,
    )
    return StepSummary(
        run_id=run_id,
        node=node,
        pid=pid,
        boot_id="boot",
        sequence=sequence,
        num_dropped=dropped,
        steps=(step,),
    )


def made(folder: Path) -> SummaryLog:
    return SummaryLog(folder, "0" * 8, 0, folder / "verdicts.jsonl")


def test_what_did_not_arrive_is_counted_and_what_arrives_twice_is_left_out(tmp_path: Path) -> None:
    log = made(tmp_path)
    with capture_logs() as logs:
        for one in (
            summary(5),  # the first that this monitor sees: an earlier one has had those before
            summary(6),
            summary(6),
            summary(9),
            summary(7),
            summary(1, pid=2),
            summary(2, pid=2, dropped=3),
            summary(3, pid=2, run_id="f" * 8),
            summary(1, node=1),
        ):
            log.add(one)
    assert (log.num_steps, log.num_lost) == (6, 5)
    assert [(line["node"], line["lost"]) for line in logs] == [(0, 2), (0, 3)]


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_log, "MAX_BYTES", 1000)
    log = made(tmp_path)
    for sequence in range(1, 101):
        log.add(summary(sequence))
    assert log.num_steps > 0 and log.num_steps + log.num_lost == 100


def test_the_child_writes_one_parquet_file_with_all_groups(tmp_path: Path) -> None:
    log = made(tmp_path / "events")
    for one in (summary(2), summary(3), summary(1, node=1)):
        log.add(one)
    log.start()
    log.close(60.0)
    [path] = (tmp_path / "events").iterdir()
    rows = pl.read_parquet(path)
    assert rows.select("rank", "step", "own_us").rows() == [(0, 2, 600), (0, 3, 600), (1, 1, 600)]
    assert rows["groups"][0].to_list()[0] == GroupSum(4, 0, 2, 50, 1 << 40, 10, 900)._asdict()
    assert log._waiting == []


@pytest.mark.parametrize("is_old", [False, True])
def test_files_of_both_versions_are_read_in_a_folder_of_any_name(
    tmp_path: Path, is_old: bool
) -> None:
    folder = tmp_path / "a*[1]"
    path = write_summaries(folder, framed([msgspec.msgpack.encode(summary(2))]))
    if is_old:
        content = pl.read_parquet(path, glob=False).drop("num_passes")
        content.write_parquet(path)
    rows, _, unread = read_rows(folder)
    assert not unread and rows.step.tolist() == [2]
    assert rows.times["num_passes"].tolist() == [0 if is_old else 6]


def test_without_polars_the_bytes_are_kept_as_they_are(tmp_path: Path) -> None:
    content = framed(msgspec.msgpack.encode(summary(n)) for n in (1, 2))
    program = (
        "import sys; sys.modules['polars'] = None; from headway.health.store import summary_file; "
        f"sys.exit(summary_file.main(['--folder', {str(tmp_path)!r}]))"
    )
    subprocess.run([sys.executable, "-c", program], input=content, check=True)
    [path] = tmp_path.glob("summary-*.msgpack")
    assert [one.sequence for one in unframed(path.read_bytes())] == [1, 2]


@pytest.mark.parametrize("cut", [1, 3, 20, -1])
def test_a_cut_stream_is_one_clear_error(tmp_path: Path, cut: int) -> None:
    content = framed([msgspec.msgpack.encode(summary(1))])
    with pytest.raises(CorruptError, match=r"summary|is cut"):
        write_summaries(tmp_path, content[:cut])
    assert list(tmp_path.iterdir()) == []


def test_steps_of_a_rank_arrive_in_a_file_of_the_monitor() -> None:
    with health_bench() as bench:
        folder = bench.root / "summaries"
        events = bench.root / "events"
        events.mkdir()
        monitor = bench.monitor("--summaries", str(folder))
        agent = bench.agent("--events", str(events))
        with bench.worker(0) as child:
            assert read_line(child) == "up"
            bench.wait_for_ranks(1)
            bench.wait_for_beats(10)
            agent.terminate()
            assert agent.wait(30) == 0
            monitor.terminate()
            assert monitor.wait(30) == 0
        [path] = folder.glob("summary-*.parquet")
        rows = pl.read_parquet(path)
        assert rows["rank"].unique().to_list() == [0] and len(rows) > 2
        steps = rows["step"].to_list()
        assert steps == list(range(steps[0], steps[0] + len(steps))), "each once, in order"


# ---- size ----------------------------------------------------------------------
def test_a_step_of_the_175b_schedule_takes_less_than_1500_bytes(tmp_path: Path) -> None:
    number = 8 * 2 * 3  # of a stage in the middle
    rank = ScheduledRank(tmp_path / f"flight-{number}.bin", number)
    source, summaries = FlightSource(tmp_path), StepSummaries(tmp_path, "0" * 8, 1535)
    sent: list[StepSummary] = []

    def notify(message: StepSummary) -> bool:
        sent.append(message)
        return True

    summaries.send(source.read(), notify)
    rank.step(99_999, with_tp=True)
    summaries.send(source.read(), notify)
    [message] = sent
    [one] = message.steps
    size, num_records = len(codec.encode(message)), rank.writer._head
    kinds = {kind_of(group.line).name for group in one.groups}
    assert kinds == {"TP", "DP", "EVERY_RANK", "FORWARD", "BACKWARD"}
    per_chunk = {group.line: group.num for group in one.groups}
    assert per_chunk[2 * GroupKind.FORWARD] == 6 * 64, "every message of six chunks"
    source.close()
    rank.close()
    assert num_records > 1500, "the schedule's lists were recorded"
    assert size <= 1500


def test_a_message_is_readable_by_other_readers_of_messagepack() -> None:
    body = codec.encode(summary(1))
    assert json.dumps(msgspec.msgpack.decode(body)["steps"][0])
