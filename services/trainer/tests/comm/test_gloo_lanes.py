"""Messages over gloo: several are under way on one lane, whatever the first of them waits for."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch
from headway.common.plan.grid import Grid
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.testkit.trainer.pool import WorkerPool
from headway.trainer.comm.groups import Groups

JOBS = "headway.testkit.trainer.jobs"
MIB = 1 << 20


@pytest.mark.parametrize("nbytes", [64, 4 * MIB, 64 * MIB])
def test_a_message_passes_an_earlier_one_of_its_lane_that_is_still_under_way(nbytes: int) -> None:
    """Catches a lane that starts nothing while it waits for its first message, on either side: the
    first is sent, or received, last."""

    def member(groups: Groups) -> list[float]:
        pipe, peer = groups.pipe, 1 - groups.pipe.rank

        def meet() -> None:  # on lanes of their own
            mine, theirs = torch.zeros(1), torch.zeros(1)
            arrived = pipe.recv("backward", theirs, peer, 9)
            pipe.send("backward", mine, peer, 9).wait()
            arrived.wait()

        if pipe.rank == 0:
            tensors = [torch.full((nbytes // 4,), float(n)) for n in range(4)]
            sends = [pipe.send("forward", tensors[0], 1, 0)]
            meet()  # by now the lane waits for the first
            sends.append(pipe.send("forward", tensors[1], 1, 1))
            for send in sends:
                send.wait()
            meet()
            pipe.send("forward", tensors[3], 1, 3).wait()
            pipe.send("forward", tensors[2], 1, 2).wait()
            return []
        boxes = [torch.full((nbytes // 4,), -1.0) for _ in range(4)]
        meet()
        pipe.recv("forward", boxes[1], 0, 1).wait()
        pipe.recv("forward", boxes[0], 0, 0).wait()
        receives = [pipe.recv("forward", boxes[2], 0, 2)]
        meet()
        receives.append(pipe.recv("forward", boxes[3], 0, 3))
        for receive in receives:
            receive.wait()
        return [float(box[-1]) for box in boxes]

    assert over_gloo(Grid(pp=2), member)[1] == [0.0, 1.0, 2.0, 3.0]


def test_a_rank_leaves_while_large_messages_to_a_stopped_peer_fill_every_buffer(
    pool: WorkerPool, tmp_path: Path
) -> None:
    generation = pool.next_generation()
    for rank in (0, 1):
        pool.submit(
            rank,
            f"{JOBS}:send_to_a_stopped_peer",
            rank=rank,
            generation=generation,
            folder=str(tmp_path),
        )
    _wait_for(tmp_path / f"posted-{generation}")
    pool.signal(1, signal.SIGSTOP)
    (tmp_path / f"go-{generation}").touch()
    _wait_for(tmp_path / f"sending-{generation}")
    pool.abort(0, generation)
    assert pool.result(0) == "aborted"
    pool.replace(1)


def _wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + 40
    while not path.exists():
        assert time.monotonic() < deadline_s, f"{path.name} never came"
        time.sleep(0.001)
