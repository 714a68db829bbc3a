"""The trace is whole, on one clock, and readable by what Perfetto reads."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.console.analysis.events import load_events
from headway.console.testing import FakeRun
from headway.console.trace.export import chrome_events, parse_steps, write_trace
from headway.console.trace.slices import DRIVER, Slice, Track, rank_slices
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@pytest.fixture
def recovered(fake: FakeRun) -> FakeRun:
    fake.advance(5)
    fake.recover(back_to=4)
    return fake


def test_every_record_of_every_rank_is_in_the_json_trace(
    recovered: FakeRun, tmp_path: Path
) -> None:
    out = tmp_path / "trace.json"
    written = write_trace(recovered.run, out)
    events = json.loads(out.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X" and event["pid"] != DRIVER]
    assert len(slices) == len(load_events(recovered.folder.path))
    assert written == len([event for event in events if event["ph"] in "Xi"])
    assert {event["pid"] for event in slices} == {0, 1}
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert named == {0: "rank 0", 1: "rank 1", DRIVER: "driver"}


def test_the_driver_shows_its_recovery_on_the_ranks_clock(
    recovered: FakeRun, tmp_path: Path
) -> None:
    out = tmp_path / "trace.json.gz"
    write_trace(recovered.run, out)
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    (recovery,) = [e for e in events if e["name"].startswith("recovery")]
    (restore, _) = [e for e in events if e["name"] == "RESTORE"]
    assert recovery["ts"] <= restore["ts"] <= recovery["ts"] + recovery["dur"]


def test_slices_of_a_thread_never_overlap_as_perfetto_would_misdraw_them(
    recovered: FakeRun,
) -> None:
    threads = defaultdict(list)
    for event in chrome_events(list(rank_slices(load_events(recovered.folder.path)))):
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(threads) > 4
    for spans in threads.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_messages_under_way_at_once_move_to_lanes(fake: FakeRun) -> None:
    writer = fake._flights[0]
    first = writer.begin(7, step=0, micro_batch=0)
    second = writer.begin(7, step=0, micro_batch=1)
    writer.end(first)
    writer.end(second)
    tracks = {s.track.thread_name for s in rank_slices(load_events(fake.folder.path))}
    assert tracks == {"sends", "sends 2"}


def test_an_action_still_open_lasts_to_the_newest_moment_and_says_so(fake: FakeRun) -> None:
    fake._flights[0].begin(6, step=0)
    fake.advance()
    slices = list(rank_slices(load_events(fake.folder.path)))
    (stuck,) = [s for s in slices if s.args.get("open")]
    assert stuck.end_ns == max(s.end_ns or 0 for s in slices)


def test_the_protobuf_trace_parses_and_every_begin_has_its_end(
    recovered: FakeRun, tmp_path: Path
) -> None:
    out = tmp_path / "trace.pftrace"
    written = write_trace(recovered.run, out)
    trace = Trace()
    trace.ParseFromString(out.read_bytes())
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor
        for p in trace.packet
        if p.HasField("track_descriptor")
    }
    assert {d.name for d in tracks.values()} >= {"rank 0", "rank 1", "driver", "compute", "steps"}
    depth: dict[int, int] = defaultdict(int)
    begun = last = 0
    for packet in trace.packet:
        if packet.HasField("track_event"):
            event = packet.track_event
            assert event.track_uuid in tracks and packet.timestamp >= last
            last = packet.timestamp
            depth[event.track_uuid] += {1: 1, 2: -1}.get(event.type, 0)
            begun += event.type != TrackEvent.TYPE_SLICE_END
            assert 0 <= depth[event.track_uuid] <= 1, (
                "slices of a track neither overlap nor end unbegun"
            )
    assert begun == written and not any(depth.values())


def test_steps_narrow_the_trace_and_leave_the_driver_out(
    recovered: FakeRun, tmp_path: Path
) -> None:
    out = tmp_path / "trace.json"
    write_trace(recovered.run, out, steps=parse_steps("1:2"))
    slices = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] in "Xi"]
    assert {e["args"]["step"] for e in slices} == {1, 2}
    assert DRIVER not in {e["pid"] for e in slices}


def test_the_newest_steps_are_kept_around_each_recovery(recovered: FakeRun, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    write_trace(recovered.run, out, newest=2)
    slices = [
        e for e in json.loads(out.read_text())["traceEvents"] if e["name"].startswith("FORWARD")
    ]
    assert {(e["args"]["generation"], e["args"]["step"]) for e in slices} == {
        (0, 3),
        (0, 4),
        (1, 4),
    }


def test_nothing_to_show_and_nowhere_to_write_are_bad_input(fake: FakeRun, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no records"):
        write_trace(fake.run, tmp_path / "trace.json")
    fake.advance()
    with pytest.raises(InputError, match="cannot write"):
        write_trace(fake.run, tmp_path / "absent" / "trace.json")


def test_step_ranges_are_read_as_written() -> None:
    assert [parse_steps(text) for text in ("", "3:", ":9", "3:9")] == [
        (0, None),
        (3, None),
        (0, 9),
        (3, 9),
    ]
    with pytest.raises(InputError, match="FIRST:LAST"):
        parse_steps("3-9")


def test_an_instant_has_no_length() -> None:
    track = Track(0, "rank 0", 0, "steps")
    event = [e for e in chrome_events([Slice(track, "x", 5, None)]) if e["name"] == "x"]
    assert event == [{"pid": 0, "tid": 0, "name": "x", "ts": 0.0, "args": {}, "ph": "i", "s": "g"}]
