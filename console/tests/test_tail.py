"""Flight records: each is read once, thinned to a budget, and shown on the host's clock."""

from __future__ import annotations

import numpy as np
import polars as pl
from headway.common.node.flight_record import RECORD, WAITING
from headway.common.plan.schedule.actions import Kind
from headway.console.analysis.events import SCHEMA, frame, load_events
from headway.console.testing import FakeRun
from headway.console.widgets.packing import BAR, MAX_BARS, NO_MICRO_BATCH, WAITS, pack, pack_window
from headway.console.widgets.tail import FlightTail, Records


def frame_of(tail: FlightTail, window_s: float = 20.0) -> pl.DataFrame:
    """What the tail has kept with the columns of ``load_events``, each record once."""
    records = Records.merge(list(tail.kept()))
    events = frame(0, 0, records.rows).with_columns(
        pl.Series("node", records.nodes), pl.Series("rank", records.ranks)
    )
    return (
        events.filter(pl.col("start_ns") >= pl.col("start_ns").max() - int(window_s * 1e9))
        .sort("end_ns", nulls_last=True)
        .unique(["node", "rank", "sequence", "launched_ns"], keep="first")
        .sort("rank", "start_ns", "sequence")
        .select(*SCHEMA)
    )


def test_each_record_is_read_once_and_an_open_one_when_it_has_ended(fake: FakeRun) -> None:
    tail = FlightTail(fake.folder.path)
    number = fake._flights[0].begin(int(Kind.SEND_FORWARD), step=0)
    assert len(tail.read()) == 0 and frame_of(tail)["end_ns"].null_count() == 1
    fake._flights[0].end(number)
    fake.advance(1)
    new = tail.read()
    events = frame_of(tail)
    assert len(new) == len(events) == 1 + 2 * 6
    assert events["end_ns"].null_count() == 0
    assert not events.select("rank", "sequence").is_duplicated().any()
    assert len(tail.read()) == 0 and len(frame_of(tail)) == len(events)
    assert events.equals(load_events(fake.folder.path))
    tail.close()


def test_a_record_left_open_by_a_killed_worker_hides_nothing_that_follows(fake: FakeRun) -> None:
    tail = FlightTail(fake.folder.path)
    fake._flights[0].begin(int(Kind.FORWARD), step=0)
    fake.advance(60)  # more records than are looked at again
    assert len(tail.read()) == 60 * 2 * 6
    fake.advance(1)
    new = tail.read()
    assert len(new) == 2 * 6 and new.rows["step"].max() == 60
    assert not len(tail._rings[min(tail._rings)].open), "it is given up"
    tail.close()


def test_the_tail_keeps_only_its_window(fake: FakeRun) -> None:
    tail = FlightTail(fake.folder.path, window_s=0.0)
    fake.advance(3)
    tail.read()
    assert len(frame_of(tail, 0.0)) == 1, "the newest record alone"
    tail.close()


def test_a_ring_that_is_made_anew_is_read_from_its_start(fake: FakeRun) -> None:
    tail = FlightTail(fake.folder.path)
    fake.advance(1)
    tail.read()
    path = min(tail._rings)
    kept = path.read_bytes()
    path.unlink()
    path.write_bytes(kept)
    assert len(tail.read()) == 6, "the new file's records; the other ring has nothing new"
    path.unlink()
    assert len(tail.read()) == 0 and len(tail._rings) == 1
    tail.close()


def many(ranks: int, actions: int) -> Records:
    """Actions of 1 ms each, one after the other; every fourth is a wait."""
    rows = np.zeros(ranks * actions, RECORD)
    place = np.tile(np.arange(actions), ranks)
    rows["kind"], rows["sequence"] = int(Kind.FORWARD), place
    rows["flags"] = np.where(place % 4 == 3, WAITING, 0)
    rows["micro_batch"] = place % 300
    rows["start_ns"] = 5_000_000_000 + place * 1_000_000
    rows["end_ns"] = rows["start_ns"] + 1_000_000
    return Records(np.zeros(len(rows), np.int64), np.repeat(np.arange(ranks), actions), rows)


def test_bars_keep_rank_kind_micro_batch_and_time() -> None:
    base_s, raw = pack(many(2, 4))
    bars = np.frombuffer(raw, BAR)
    assert base_s == 5.0 and bars["rank"].tolist() == [0] * 4 + [1] * 4
    assert bars["start_us"].tolist()[:4] == [0, 1000, 2000, 3000]
    assert set(bars["span_us"]) == {1000}
    assert bars["kind"].tolist()[:4] == [1, 1, 1, 1 + WAITS]
    assert bars["micro_batch"].tolist()[:4] == [0, 1, 2, 3]
    assert np.frombuffer(pack(many(1, 300))[1], BAR)["micro_batch"][-1] == NO_MICRO_BATCH


def test_a_picture_of_many_ranks_keeps_to_its_budget_and_misses_no_rank() -> None:
    bars = np.frombuffer(pack(many(64, 400))[1], BAR)
    assert MAX_BARS / 4 <= len(bars) <= MAX_BARS
    assert set(bars["rank"]) == set(range(64)), "every rank is still there"
    for rank in (0, 63):
        start = np.sort(bars[bars["rank"] == rank]["start_us"])
        assert start[0] < 50_000 and start[-1] > 350_000, "over the whole time"


def test_the_longest_action_stands_for_what_is_thinned_out() -> None:
    records = many(1, 10_000)
    records.rows["end_ns"][5000] = records.rows["start_ns"][5000] + 900_000_000
    bars = np.frombuffer(pack(records, 100)[1], BAR)
    assert len(bars) <= 100 and 900_000 in bars["span_us"]


def test_a_long_action_does_not_make_the_time_it_began_in_complete() -> None:
    records = many(1, 3)
    second = 1_000_000_000
    records.rows["start_ns"] = np.array([5, 16, 26]) * second  # the first one lasted 13 s
    records.rows["end_ns"] = np.array([18, 17, 27]) * second
    about, bars = pack_window([records], 0, 30 * second, window_s=20.0)
    assert about["since_s"] == 6.0, "actions of the time before are no longer kept"
    assert len(np.frombuffer(bars, BAR)) == 3
    assert pack_window([records], 0, 30 * second, window_s=60.0)[0]["since_s"] == 5.0
