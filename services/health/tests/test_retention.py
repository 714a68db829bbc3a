"""Saved records within a limit of disk space: the oldest go first, those of incidents last."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from headway.common.errors import ConfigError
from headway.common.node.flight import FlightWriter
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.messages.health import Verdict
from headway.health.config import EventsConfig
from headway.health.store.child import Saving
from headway.health.store.retention import Saved, incidents_of, keep_to, surplus

MINUTE_S = 60.0


def minutes(number: int, size: int = 10) -> list[Saved]:
    """One file for each minute from 0 on."""
    return [Saved(Path(str(at)), size, at * MINUTE_S, (at + 1) * MINUTE_S) for at in range(number)]


def names(files: Sequence[Saved]) -> list[str]:
    return [one.path.name for one in files]


def verdict(at_s: float, *, is_open: bool, name: str = "v", silence_s: float = 0.0) -> Verdict:
    return Verdict(
        id=name,
        revision=1,
        kind="silence",
        is_open=is_open,
        run_id="0" * 8,
        node=0,
        unix_s=at_s,
        silence_s=silence_s,
    )


def test_the_oldest_files_go_and_the_newest_stays_whatever_its_size() -> None:
    assert names(surplus(minutes(5), [], 30)) == ["0", "1"]
    assert surplus(minutes(3), [], 30) == []
    assert names(surplus(minutes(3), [], 1)) == ["0", "1"]


def test_files_around_an_incident_are_kept_beyond_the_limit() -> None:
    files = minutes(10)
    # minute 3.5 to 3.6, so that minutes 2 to 4 are within 60 s of it
    incidents = incidents_of([verdict(210.0, is_open=True), verdict(216.0, is_open=False)], 1e9)
    assert incidents == [(150.0, 276.0)]
    assert names(surplus(files, incidents, 20)) == ["0", "1", "5", "6", "7"]


def test_an_open_incident_lasts_until_now_and_a_hang_began_before_it_was_named() -> None:
    [(begin_s, end_s)] = incidents_of([verdict(1000.0, is_open=True, silence_s=30.0)], 5000.0)
    assert (begin_s, end_s) == (910.0, 5060.0)
    again = [verdict(100.0, is_open=True, name="a"), verdict(500.0, is_open=False, name="b")]
    assert len(incidents_of(again, 600.0)) == 2


def test_incidents_take_four_times_the_limit_at_most_and_leave_room_for_new_files() -> None:
    files = minutes(20)
    always = [(0.0, 15 * MINUTE_S - 1)]  # files 0 to 14
    removed = names(surplus(files, always, 20))
    kept = [name for name in names(files) if name not in removed]
    assert kept == ["9", "10", "11", "12", "13", "14", "18", "19"], "8 files of 10 bytes"


def test_the_child_removes_what_is_beyond_the_limit(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    writer = FlightWriter.create(tmp_path / "flight-0.bin", 0, 64)
    now_s = time.time()
    for age in range(5, 0, -1):
        old = events / f"n0-{age:020d}.npy"
        old.write_bytes(bytes(1000))
        os.utime(old, (now_s - age * 600, now_s - age * 600))
    of_another_node = events / f"n1-{1:020d}.parquet"
    of_another_node.write_bytes(bytes(1000))
    verdicts = tmp_path / "verdicts.jsonl"
    wrong = verdict(now_s - 3 * 600, is_open=False)
    verdicts.write_bytes(msgspec.json.encode(wrong) + b"\n{torn")
    writer.end(writer.begin(int(Kind.STEP), step=1))
    assert Saving(tmp_path, events, 0, keep_bytes=1).run()
    assert not list(events.glob("n0-*.npy")) and of_another_node.exists()
    [newest] = events.glob("n0-*")
    for age in (5, 3):
        old = events / f"n0-{age:020d}.npy"
        old.write_bytes(bytes(1000))
        os.utime(old, (now_s - age * 600, now_s - age * 600))
    assert keep_to(newest.stat().st_size + 500, events.glob("n0-*"), verdicts) == 1
    assert [path.name for path in events.glob("n0-*.npy")] == [f"n0-{3:020d}.npy"]
    writer.close()


@pytest.mark.parametrize("gib", [0.0, -1.0, float("inf"), float("nan")])
def test_a_limit_that_is_none_is_refused(gib: float) -> None:
    with pytest.raises(ConfigError, match=r"events\.keep_gib"):
        EventsConfig(keep_gib=gib)
