"""In how many steps the collectives of tensor parallelism are recorded one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Kind
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.trainer.comm.groups import Groups
from headway.trainer.parallel import tensor
from headway.trainer.parallel.tensor import TensorParallel

STEPS = range(16, 49)


@pytest.mark.parametrize(
    ("num_waits", "every"), [(1, 2), (4, 2), (5, 4), (9, 8), (17, 16), (40, 16)]
)
def test_the_fewer_a_step_has_the_more_steps_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_waits: int, every: int
) -> None:
    monkeypatch.setattr(tensor, "RECORDS_A_STEP", 2)
    writers = [FlightWriter.create(tmp_path / f"flight-{rank}.bin", rank) for rank in range(2)]

    def member(groups: Groups) -> None:
        tp = TensorParallel(groups["tp"])
        for step in STEPS:
            tp.record(writers[tp.rank], step)
            for _ in range(num_waits):
                tp.all_gather(torch.ones(1, 2)).wait()
            tp.record(None)

    over_gloo(Grid(tp=2, pp=1, dp=1), member)
    for rank, writer in enumerate(writers):
        reader = FlightReader(tmp_path / f"flight-{rank}.bin")
        records = reader.snapshot()
        found = records[records["kind"] == Kind.TENSOR_PARALLEL]["step"]
        wanted = [step for step in STEPS if step % every == 0 for _ in range(num_waits)]
        assert found.tolist() == wanted
        reader.close(), writer.close()
