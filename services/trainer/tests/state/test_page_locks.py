"""Slots of snapshots are page-locked between two steps, on the thread that trains: to lock memory
waits until the device is idle, and beside a step the device waits for peers."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.common.node.arena import Arena
from headway.common.plan.grid import Grid
from headway.trainer.state import copy_stream
from headway.trainer.state.copy_stream import CopyStream
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.params import ParamSpec, Precision
from headway.trainer.state.slot_layout import layout, offsets
from headway.trainer.state.snapshot import Snapshots
from headway.trainer.state.train_state import TrainState


class Stream:
    device = torch.device("cpu")

    def wait_event(self, event: object) -> None:
        """It is over."""

    def synchronize(self) -> None:
        """Nothing is queued."""


class Event:
    def record(self, stream: object) -> None:
        """Nothing is queued."""


class Cudart:
    """Page-locks everything, and keeps what was asked of it, and by which thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, bool]] = []

    def cudaHostRegister(self, address: int, *_: Any) -> int:
        return self._note("lock", address)

    def cudaHostUnregister(self, address: int) -> int:
        return self._note("unlock", address)

    def _note(self, what: str, address: int) -> int:
        is_main = threading.current_thread() is threading.main_thread()
        self.calls.append((what, address, is_main))
        return 0


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Cudart:
    made = Cudart()
    monkeypatch.setattr(copy_stream, "_cudart", lambda: made)
    stubs: dict[str, Any] = {
        "Stream": lambda *_, **__: Stream(),
        "Event": Event,
        "current_stream": lambda _: Stream(),
        "stream": lambda _: contextlib.nullcontext(),
        "device": lambda _: contextlib.nullcontext(),
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    return made


@pytest.fixture
def arena_and_snapshots() -> Iterator[tuple[Arena, Snapshots]]:
    specs = [ParamSpec("w", (100,), None, 0, 1, True)]
    flats = [FlatChunk(specs, dp_rank=0, dp_size=1, precision=Precision.of("fp32"))]
    size, where = offsets(flats)[1], layout(flats, Grid(), 0)
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        Arena.create(
            Path(folder) / "a", run_id="0123abcd", rank=0, slot_bytes=size, layout=where
        ) as arena,
    ):
        yield arena, Snapshots(arena, flats)


def test_slots_are_locked_before_the_first_step_and_never_beside_one(
    cudart: Cudart, arena_and_snapshots: tuple[Arena, Snapshots]
) -> None:
    arena, snapshots = arena_and_snapshots
    snapshots._gpu = CopyStream(torch.device("cpu"))
    snapshots.lock()
    resident = [call for call in cudart.calls if call[0] == "lock"]
    assert len(resident) == 2
    for step in range(6):
        snapshots.begin(step, 0, TrainState(step=step, samples=0), durable=False)
        snapshots.finish()
        snapshots.commit(step)
    assert cudart.calls == resident
    for step in range(6, 12):  # one is read meanwhile, so that a third slot is used, and given back
        snapshots.begin(step, 0, TrainState(step=step, samples=0), durable=step == 6)
        snapshots.finish()
        snapshots.commit(step)
        if step == 9:
            for info in arena.wanted():
                arena.release(info)
    assert [what for what, *_ in cudart.calls] == ["lock", "lock", "lock", "unlock"]
    snapshots.close()
    assert all(is_main for *_, is_main in cudart.calls)
    locked: set[int] = set()
    for what, address, _ in cudart.calls:
        (locked.add if what == "lock" else locked.remove)(address)
    assert not locked


def test_a_third_slot_is_locked_before_the_optimizer_and_not_by_the_snapshot_behind_it(
    cudart: Cudart, arena_and_snapshots: tuple[Arena, Snapshots]
) -> None:
    """Behind the optimizer, gathers wait for peers."""
    _, snapshots = arena_and_snapshots
    snapshots._gpu = CopyStream(torch.device("cpu"))
    snapshots.lock()
    locks = []
    for step in range(4):  # one is read from the second on
        snapshots.begin(step, 0, TrainState(step=step, samples=0), durable=step == 1)
        snapshots.finish()
        snapshots.commit(step)
        before = len(cudart.calls)
        snapshots.lock()
        locks.append((before, len(cudart.calls)))
    assert locks == [(2, 2), (2, 3), (3, 3), (3, 3)]
    snapshots.close()
