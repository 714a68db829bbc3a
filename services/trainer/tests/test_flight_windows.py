"""Flight records on their way from shared memory to the run folder: each once, over restarts and resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from headway.common.node.flight import FlightWriter
from headway.common.plan.schedule.actions import Kind
from headway.trainer.control.recorder import Recorder


def steps(events: Path) -> list[int]:
    """The step numbers in all windows, in file order."""
    return [int(s) for file in sorted(events.glob("*.npy")) for s in np.load(file, allow_pickle=False)["step"]]


def write(path: Path, numbers: range, generation: int = 0) -> FlightWriter:
    writer = FlightWriter.create(path, 0, capacity=64)
    writer.set_generation(generation)
    for step in numbers:
        writer.end(writer.begin(int(Kind.STEP), step=step))
    return writer


def test_each_record_is_written_once_also_by_a_restarted_executor(tmp_path: Path) -> None:
    ring = tmp_path / "flight-0.bin"
    write(ring, range(3)).close()
    recorder = Recorder(tmp_path, tmp_path, 0)
    recorder.save()
    recorder.save()
    write(ring, range(3, 5)).close()
    Recorder(tmp_path, tmp_path, 0).save()
    assert steps(tmp_path) == [0, 1, 2, 3, 4]


def test_a_resumed_run_whose_ring_counts_from_zero_again_loses_nothing(tmp_path: Path) -> None:
    ring = tmp_path / "flight-0.bin"
    write(ring, range(5)).close()
    Recorder(tmp_path, tmp_path, 0).save(final=True)
    ring.unlink()
    write(ring, range(5, 7)).close()
    Recorder(tmp_path, tmp_path, 0).save()
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5, 6]


def test_a_record_that_a_dead_process_left_open_holds_nothing_up(tmp_path: Path) -> None:
    ring = tmp_path / "flight-0.bin"
    writer = write(ring, range(2))
    writer.begin(int(Kind.NORM), step=2)
    recorder = Recorder(tmp_path, tmp_path, 0)
    recorder.save()
    assert steps(tmp_path) == [0, 1]
    writer.close()
    write(ring, range(2, 4), generation=1).close()
    recorder.save()
    assert steps(tmp_path) == [0, 1, 2, 2, 3]
