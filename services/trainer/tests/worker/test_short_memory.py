"""Memory that runs out while another process holds it is not the run's own need: a restore is tried
once more, a step may be; and how long a rank waits for its device after an abort."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.common.config import to_toml
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import private_roots
from headway.common.wire.messages.executor import LeftGeneration
from headway.common.wire.messages.worker import Assign, Restore
from headway.testkit.trainer.sessions import one_rank
from headway.trainer.comm import nccl
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.interface import Aborted, StuckTransport
from headway.trainer.worker import rank as rank_module
from headway.trainer.worker.failures import breaks_device
from headway.trainer.worker.memory import OWN_BEYOND_TORCH, held_by_others
from headway.trainer.worker.rank import Rank
from headway.trainer.worker.worker import Worker

GIB = 1 << 30
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
ASSIGN = Assign(generation=1, rank=0, restore=Restore(source="init", step=0))


def fill(monkeypatch: pytest.MonkeyPatch, free: int, own: int) -> None:
    """A GPU of 80 GiB, of which this process's allocator has ``own`` bytes."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: own)


@pytest.mark.parametrize(
    ("free", "own", "others"),
    [
        (1 * GIB, 78 * GIB, 0),
        (0, 80 * GIB - OWN_BEYOND_TORCH, 0),
        (0, 80 * GIB - OWN_BEYOND_TORCH - 1, OWN_BEYOND_TORCH + 1),
        (2 * GIB, 30 * GIB, 48 * GIB),
    ],
)
def test_memory_of_others_is_what_neither_torch_nor_the_libraries_hold(
    monkeypatch: pytest.MonkeyPatch, free: int, own: int, others: int
) -> None:
    fill(monkeypatch, free, own)
    assert held_by_others() == others


def test_without_a_gpu_nobody_holds_any_of_it() -> None:
    assert held_by_others() == 0


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker of its own run, without an executor."""
    with private_roots():
        folder = RunDir.create(tmp_path / "run", run_id=new_run_id())
        folder.config.write_text(to_toml(one_rank()))
        NodePaths(folder.run_id, 0).create()
        made = Worker(folder.path, 0, "n0w0")
        yield made
        made.link.close()


@pytest.mark.parametrize("others", [0, 48 * GIB])
def test_a_step_that_runs_out_of_memory_ends_the_run_unless_others_hold_it(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    class Full:
        rank = 0

        def __init__(self, *_: Any) -> None: ...

        def count_life(self) -> None: ...

        def serve(self, *_: Any) -> None:
            fill(monkeypatch, 0, 80 * GIB - others)
            monkeypatch.setattr("headway.trainer.worker.worker.context_is_broken", lambda: False)
            raise FULL

    reports: list[Any] = []
    monkeypatch.setattr(worker.link, "send", reports.append)
    monkeypatch.setattr("headway.trainer.worker.worker.Rank", Full)
    worker._serve(ASSIGN)
    (left,) = [one for one in reports if isinstance(one, LeftGeneration)]
    assert (left.reason, left.is_fatal) == ("error", not others)
    assert left.detail.startswith("rank 0 ran out of memory")
    assert ("other processes hold 48.0 GiB of its GPU" in left.detail) is bool(others)
    assert ("the worst rank would need less with" in left.detail) is not bool(others)


Restoring = Callable[..., list[str]]


@pytest.fixture
def restoring(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Restoring:
    """Has ``rank`` restore, where each attempt raises what is given; returns what happened."""
    monkeypatch.setattr(rank_module, "MEMORY_WAIT_S", 0.0)

    def restore(*errors: BaseException | None) -> list[str]:
        left, happened = list(errors), []

        def attempt(_: Assign) -> None:
            happened.append("attempt")
            if error := left.pop(0):
                raise error

        monkeypatch.setattr(rank, "_restore", attempt)
        monkeypatch.setattr(rank._session, "join", lambda _: None)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: happened.append("freed"))
        rank._restore_twice(ASSIGN, None)  # type: ignore[arg-type]
        return happened

    return restore


def test_a_restore_that_ran_out_of_memory_is_tried_once_more(
    rank: Rank, restoring: Restoring
) -> None:
    assert restoring(None) == ["attempt"]
    assert restoring(FULL, None) == ["attempt", "attempt"]
    assert restoring(MemoryError(), None) == ["attempt", "attempt"]
    rank._device = torch.device("cuda", 0)
    assert restoring(FULL, None) == ["attempt", "freed", "attempt"]


def test_the_second_failure_and_every_other_one_end_a_restore(restoring: Restoring) -> None:
    last = MemoryError("the second")
    with pytest.raises(MemoryError, match="the second"):
        restoring(FULL, last, None)
    with pytest.raises(RuntimeError, match="illegal"):
        restoring(RuntimeError("CUDA error: an illegal access"), None)


def test_an_abort_ends_the_wait_for_memory(
    rank: Rank, restoring: Restoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_module, "MEMORY_WAIT_S", 1e9)
    rank._context.fence.enter(1, Channels())
    rank._context.fence.abort(1)
    with pytest.raises(Aborted):
        restoring(FULL, None)


@pytest.mark.parametrize("is_late", [False, True])
def test_memory_is_used_again_once_an_aborted_device_is_idle_and_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    idle, asked = threading.Event(), []
    if not is_late:
        idle.set()

    def synchronize(device: torch.device) -> None:
        asked.append(device)
        idle.wait(60.0)

    monkeypatch.setattr(nccl, "SETTLE_S", 0.05 if is_late else 60.0)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    device = torch.device("cuda", 0)
    if is_late:
        with pytest.raises(StuckTransport, match=r"still busy 0\.05 s after") as raised:
            nccl.settle(device)
        assert breaks_device(raised.value), "the process is replaced"
    else:
        nccl.settle(device)
    assert asked == [device], "all of its streams are waited for"
    idle.set()
