"""What an agent reads from a ring about the waits of its rank."""

from __future__ import annotations

import time
from pathlib import Path

from headway.common.node.flight import FlightWriter
from headway.common.node.flight_record import ON_DEVICE
from headway.common.plan.schedule.actions import Kind
from headway.health.sources.flight import FlightSource


def test_a_ring_tells_whether_its_rank_waits_and_for_how_long_its_step_has_lasted(
    tmp_path: Path,
) -> None:
    writer = FlightWriter.create(tmp_path / "flight-0.bin", 0)
    clock_ns = [time.monotonic_ns()]
    source = FlightSource(tmp_path, clock_ns=lambda: clock_ns[0])
    assert (source.read()[0].waits, source.read()[0].step_age_s) == ("", -1.0)
    with writer.record(Kind.STEP, step=7), writer.record(Kind.FORWARD, step=7):
        clock_ns[0] = time.monotonic_ns() + 5_000_000_000
        [busy] = source.read()
        assert (busy.waits, busy.open_kind) == ("", "FORWARD") and busy.step_age_s >= 5.0
        with writer.waiting:
            [waiting] = source.read()
            assert (waiting.waits, waiting.open_kind) == ("others", "FORWARD")
            assert waiting.age_s == 0.0, "a further wait is progress"
            clock_ns[0] += 2_000_000_000
            assert source.read()[0].age_s == 2.0
    with writer.record(Kind.FORWARD, flags=ON_DEVICE):
        assert source.read()[0].waits == "device"
    assert source.read()[0].step_age_s == -1.0
    source.close()
    writer.close()
