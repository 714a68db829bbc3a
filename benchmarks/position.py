"""How soon is it seen in which record a GPU hangs, and that it continues?

``python -m benchmarks.position``, on a machine with a GPU and cupy.

A kernel that the host must let go is launched inside one record of a random step of records, and
the host records the rest of the step at once. ``DevicePosition`` asks the GPU meanwhile. Measured
are the time until the flight ring shows the record that holds the GPU, and the time from letting it
go until the ring shows the last record.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.plan.schedule.actions import Kind
from headway.testkit.trainer.held_stream import HeldStream
from headway.trainer.device.choose import take_device
from headway.trainer.device.device_recorder import DeviceRecorder, recorder_for
from headway.trainer.device.position import DevicePosition

from benchmarks.report import finish, parser

LIMIT_S = 0.2
GIVE_UP_S = 5.0
KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.REDUCE_SCATTER, Kind.OPTIMIZER) * 8


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; the exit code is the number of limits that do not hold."""
    made = parser(__doc__)
    made.add_argument("--times", type=int, default=20)
    made.add_argument("--seed", type=int, default=0)
    options = made.parse_args(argv)
    device = take_device(0)
    if device.type != "cuda":
        print("torch sees no GPU here", file=sys.stderr)
        return 2
    drawn = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="hw-position-") as folder:
        rounds = [held(Path(folder), device, drawn) for _ in range(options.times)]
    shown, continued = zip(*rounds, strict=True)
    in_time = sum(max(one) <= LIMIT_S for one in rounds)
    print(f"shown after {statistics.median(shown):.3f} s (most {max(shown):.3f}), "
          f"continued after {statistics.median(continued):.3f} s (most {max(continued):.3f}), "
          f"{in_time} of {options.times} within {LIMIT_S} s")  # fmt: skip
    failures = [f"{options.times - in_time} late"] if in_time < options.times else []
    figures = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "seed": options.seed,
        "shown_s": [round(value, 4) for value in shown],
        "continued_s": [round(value, 4) for value in continued],
    }
    return finish(options.out, failures, **figures)


def held(folder: Path, device: torch.device, drawn: random.Random) -> tuple[float, float]:
    """Seconds until the record that holds the GPU is shown, and until the last one is."""
    path = folder / "flight-0.bin"
    writer, at = FlightWriter.create(path, 0, 1024), drawn.randrange(len(KINDS))
    recorder, reader = recorder_for(writer, device), FlightReader(path)
    assert isinstance(recorder, DeviceRecorder)
    position = DevicePosition(recorder, device)
    try:
        with recorder.record(Kind.DATA, step=1):
            torch.zeros(8, device=device).add_(1)
        torch.cuda.synchronize()
        time.sleep(drawn.uniform(0, 0.1))  # anywhere between two looks
        for index, kind in enumerate(KINDS):
            with recorder.record(kind, step=1):
                if index == at:
                    held_stream = HeldStream()
        # the first record is DATA; the device has passed the beginning of the next but ``at``
        shown_s = _until(lambda: _place(reader) == (at + 1, False))
        held_stream.release()
        return shown_s, _until(lambda: _place(reader) == (len(KINDS), True))
    finally:
        position.close()
        torch.cuda.synchronize()
        reader.close()
        writer.close()
        path.unlink()


def _place(reader: FlightReader) -> tuple[int, bool] | None:
    passed = reader.header.passed
    return None if passed is None else (passed.sequence, passed.is_end)


def _until(holds: Callable[[], bool]) -> float:
    """Seconds until ``holds``, infinite if it never does."""
    began_s = time.monotonic()
    while not holds():
        if time.monotonic() - began_s > GIVE_UP_S:
            return float("inf")
        time.sleep(0.001)
    return time.monotonic() - began_s


if __name__ == "__main__":
    sys.exit(main())
