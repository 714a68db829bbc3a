"""What does it cost to count collectives and to record a rank's actions, on and off in turns?

``python -m benchmarks.counting``.

Ranks are threads of one process over real gloo groups, which train a small model. Counting and
recording are off in every other step of the same run, and the process's CPU time of the steps is
compared: the median of the pairs' ratios. So small a model has each collective of tensor
parallelism recorded in every second step, large ones in every 16th. The spread of such ratios is as
large as the limit, so the cost is accounted as well: a step's records and collectives times what
one of each costs by itself, which leaves out what they cost others, as by caches. Beside that the
cost of one collective's count (entered and done together), and the bytes of a rank's ring with its
table.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from headway.common.config import from_dict
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.group_table import GroupLine
from headway.common.plan.collectives import Op, memberships
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Kind
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.device.recorder import NoRecorder
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session

from benchmarks.report import finish, parser

LAYOUTS = {"alone": {}, "tp2": {"tp": 2}, "pp2xdp2": {"pp": 2, "dp": 2}}
LIMIT_SHARE, LIMIT_US, LIMIT_MIB = 0.004, 1.5, 5.0
WARM_UP = 4


class Switch:
    """A recorder that can be turned off, and the count of collectives with it."""

    def __init__(self, writer: FlightWriter) -> None:
        self._writer, self._off, self.is_on = writer, NoRecorder(), True

    def record(self, kind: int, **fields: int) -> Any:
        """See ``Recorder``."""
        return (self._writer if self.is_on else self._off).record(kind, **fields)

    def name(self, seq: int, collective: int) -> None:
        """See ``Recorder``."""
        if seq >= 0 and self.is_on:
            self._writer.name(seq, collective)

    def add(self, kind: int, start_ns: int, end_ns: int, *, step: int) -> None:
        """See ``Recorder``."""
        self._writer.add(kind, start_ns, end_ns, step=step)

    def set_generation(self, generation: int) -> None:
        """See ``Recorder``."""
        self._writer.set_generation(generation)


class Turns(StepHooks):
    """Turns all ranks' recording on and off after each step of rank 0, and takes the times."""

    def __init__(self, switches: Sequence[Switch], *, leads: bool) -> None:
        self._switches, self._leads = switches, leads
        self._begun_s = time.process_time()
        self.steps: list[tuple[bool, float]] = []

    def on_step(self, result: StepResult) -> None:
        del result
        if not self._leads:
            return
        now_s = time.process_time()
        is_on = self._switches[0].is_on
        self.steps.append((is_on, now_s - self._begun_s))
        for switch in self._switches:
            switch.is_on = not is_on
        _count(enabled=not is_on)
        self._begun_s = time.process_time()


_ENTER, _REACH = GroupLine.enter, GroupLine.reach


def _count(*, enabled: bool) -> None:
    GroupLine.enter = _ENTER if enabled else lambda *_: 0  # type: ignore[method-assign]
    GroupLine.reach = _REACH if enabled else lambda *_, **__: None  # type: ignore[method-assign]


@contextmanager
def counting_again() -> Iterator[None]:
    """Whatever happens in the block, collectives are counted after it."""
    try:
        yield
    finally:
        _count(enabled=True)


def configuration(parallel: dict[str, int], steps: int) -> RunConfig:
    """Of a model whose step takes half a second of a core."""
    world = parallel.get("tp", 1) * parallel.get("pp", 1) * parallel.get("dp", 1)
    return from_dict(
        RunConfig,
        {
            "model": {"layers": 4, "hidden": 256, "heads": 4, "vocab_size": 512, "seq_len": 128},
            "parallel": parallel,
            "launch": {"nodes": 1, "ranks_per_node": world},
            "train": {
                "steps": steps, "global_batch_size": 16, "micro_batch_size": 2, "dtype": "fp32",
                "eval_every": 0,
            },
        },
    )  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """CPU time by itself, in microseconds."""

    count: float
    """Of one collective's count, entered and done together."""
    record: float
    """Of one record of an action."""


@dataclass(frozen=True)
class Shares:
    """The cost of counting and recording, as shares of a step's CPU time."""

    paired: float
    """Median of the ratios of steps with it to the steps without it that follow, less one."""
    error: float
    """Standard error of that, from the spread of the ratios."""
    accounted: float


def share(parallel: dict[str, int], pairs: int, folder: Path, costs_us: Costs) -> Shares:
    """How much more CPU time a step takes with counting and recording."""
    config = configuration(parallel, 2 * pairs + WARM_UP)
    size = config.parallel.world_size
    writers = [FlightWriter.create(folder / f"flight-{rank}.bin", rank) for rank in range(size)]
    readers = [FlightReader(folder / f"flight-{rank}.bin") for rank in range(size)]
    switches = [Switch(writer) for writer in writers]
    counts: list[int] = []
    turns = [Turns(switches, leads=rank == 0) for rank in range(size)]

    def member(groups: Groups) -> None:
        rank = groups.every_rank.rank
        session = Session(
            config, rank, data_factory=synthetic(config, rank), recorder=switches[rank]
        )
        session.join(groups)
        session.load("init")
        session.run(turns[rank])
        counts.append(sum(one.entered for one in readers[rank].groups()))
        session.leave()

    with counting_again():
        over_gloo(config.parallel.grid, member, [writer.table for writer in writers])
    num_on = len(turns[0].steps) / 2
    num_records = sum(reader.head for reader in readers)
    spent_us = (num_records * costs_us.record + sum(counts) * costs_us.count) / num_on
    for rank, (writer, reader) in enumerate(zip(writers, readers, strict=True)):
        reader.close()
        writer.close()
        (folder / f"flight-{rank}.bin").unlink()
    steps = turns[0].steps[WARM_UP:]
    ratios = [
        with_s / without_s for (is_on, with_s), (_, without_s) in itertools.pairwise(steps) if is_on
    ]
    without_s_each = statistics.median(spent_s for is_on, spent_s in steps if not is_on)
    # of a median, by the spread of nearly normal values
    error = 1.253 * statistics.stdev(ratios) / len(ratios) ** 0.5
    return Shares(statistics.median(ratios) - 1, error, spent_us / 1e6 / without_s_each)


def record_us(folder: Path, times: int = 50_000) -> float:
    """CPU time of one record of an action, in microseconds."""
    writer = FlightWriter.create(folder / "record.bin", 0)
    begun_s = time.process_time()
    for step in range(times):
        with writer.record(Kind.FORWARD, step=step, micro_batch=1, chunk=0):
            pass
    spent_s = time.process_time() - begun_s
    writer.close()
    (folder / "record.bin").unlink()
    return spent_s / times * 1e6


def count_us(folder: Path, times: int = 200_000) -> float:
    """CPU time of one collective's count, entered and done together, in microseconds."""
    writer = FlightWriter.create(folder / "count.bin", 0)
    line = writer.table.begin(0, memberships(Grid(tp=2), 0))[2]
    begun_s = time.process_time()
    for _ in range(times):
        line.enter(Op.ALL_GATHER, 8)
        line.leave()
    spent_s = time.process_time() - begun_s
    writer.close()
    (folder / "count.bin").unlink()
    return spent_s / times * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; the exit code is the number of limits that do not hold."""
    made = parser(__doc__)
    made.add_argument("--pairs", type=int, default=30, help="steps with and without, each")
    options = made.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hw-counting-", dir="/dev/shm") as shm:
        folder = Path(shm)
        costs = Costs(
            statistics.median(count_us(folder) for _ in range(5)),
            statistics.median(record_us(folder) for _ in range(5)),
        )
        shares = {layout: share(of, options.pairs, folder, costs) for layout, of in LAYOUTS.items()}
        FlightWriter.create(folder / "ring.bin", 0).close()
        ring_mib = (folder / "ring.bin").stat().st_size / 2**20
    for layout, found in shares.items():
        print(
            f"{layout:8} {found.accounted:.2%} of a step's CPU time accounted; in pairs "
            f"{found.paired:+.2%}, standard error {found.error:.2%}"
        )
    print(
        f"a collective {costs.count:.2f} us, a record {costs.record:.2f} us; ring and table "
        f"{ring_mib:.2f} MiB"
    )
    # a pair's ratio shows more than the limit only if its error does not explain that
    failures = [
        f"{layout}: {found.accounted:.2%} of a step accounted, {found.paired:.2%} in pairs"
        for layout, found in shares.items()
        if found.accounted > LIMIT_SHARE or found.paired - 2 * found.error > LIMIT_SHARE
    ]
    failures += [f"{costs.count:.2f} us a collective"] if costs.count > LIMIT_US else []
    failures += [f"{ring_mib:.1f} MiB a rank"] if ring_mib > LIMIT_MIB else []
    figures = {
        "share_of_step": {layout: asdict(found) for layout, found in shares.items()},
        "collective_us": costs.count, "record_us": costs.record, "ring_mib": ring_mib,
    }  # fmt: skip
    return finish(options.out, failures, **figures)


if __name__ == "__main__":
    sys.exit(main())
