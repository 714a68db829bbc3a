"""A damaged snapshot never becomes state: the rank says which one it was, and
takes the next good copy."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from headway.common.config import to_toml
from headway.common.node import failpoints
from headway.common.node.arena import Arena
from headway.common.node.arena_file import open_or_replace
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.seals import read_seals
from headway.common.node.testing import private_roots
from headway.common.wire.messages.executor import LeftGeneration
from headway.common.wire.messages.worker import Assign, Restore
from headway.testkit.trainer.sessions import Losses, arena_at, arena_of, one_rank, train_on
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted
from headway.trainer.errors import BadSnapshotError
from headway.trainer.session.hooks import StepResult
from headway.trainer.session.session import Session
from headway.trainer.state.train_state import TrainState
from headway.trainer.worker.worker import Worker

pytestmark = pytest.mark.usefixtures("one_thread")

END = 6


def _session(path: Path) -> Session:
    config = one_rank()
    return Session(config, 0, data_factory=synthetic(config, 0), open_arena=arena_at(path))


def _break_off(session: Session, until: int) -> None:
    """Train ``until`` steps, then fail: the last two states are sealed, as in a run's middle."""

    class Failing(Losses):
        def on_step(self, result: StepResult) -> None:
            super().on_step(result)
            if result.step + 1 == until:
                raise Aborted

    session.join(Groups.alone())
    session.load("init")
    with pytest.raises(Aborted):
        session.run(Failing(session))
    session.leave()


def _flip(path: Path, *steps: int, slots: tuple[int, ...] = (0, 1, 2)) -> None:
    """One bit in the middle of the data of each copy of these steps."""
    with Arena.open(path, writable=False) as arena, path.open("r+b", buffering=0) as file:
        for info in arena.sealed():
            if info.step in steps and info.index in slots:
                at = arena._data_start(info.index) + arena.slot_bytes // 2
                os.pwrite(file.fileno(), bytes([os.pread(file.fileno(), 1, at)[0] ^ 4]), at)


def _steps(path: Path) -> list[int]:
    with Arena.open(path, writable=False) as arena:
        return [info.step for info in arena.sealed()]


def _state(session: Session) -> list[bytes]:
    return [flat.state.numpy().tobytes() for flat in session.flats]


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headway-test-", dir="/dev/shm") as folder:
        yield Path(folder) / "arena-0.bin"


@pytest.fixture
def undisturbed(tmp_path: Path) -> tuple[list[float], list[bytes]]:
    """Losses of every step, and the state at the end."""
    session = _session(tmp_path / "other.bin")
    return train_on(session, END), _state(session)


@pytest.mark.parametrize("is_survivor", [True, False])
def test_a_flipped_snapshot_is_named_and_training_continues_bit_for_bit_from_the_one_before(
    path: Path, undisturbed: tuple[list[float], list[bytes]], is_survivor: bool
) -> None:
    session = _session(path)
    _break_off(session, 4)
    assert _steps(path) == [3, 4]
    _flip(path, 4)
    if not is_survivor:
        arena_of(session).close()
        session = _session(path)
    session.join(Groups.alone(1))
    before = _state(session)
    with pytest.raises(BadSnapshotError) as error:
        session.load("arena", 4)
    session.leave()
    assert (error.value.step, error.value.path) == (4, path)
    assert "slot" in error.value.message and str(path) in error.value.message
    assert _state(session) == before, "the state was touched before its source was verified"
    assert _steps(path) == [3], "a slot known to be bad is offered"
    losses, end = undisturbed
    assert train_on(session, END, step=3, generation=2) == losses[3:]
    assert _state(session) == end


def test_a_second_copy_of_the_same_step_is_used_where_the_first_is_damaged(path: Path) -> None:
    session = _session(path)
    train_on(session, 4)
    after = _state(session)
    with Arena.open(path, writable=False) as arena:
        newest = arena.sealed()[-1]
    _flip(path, 4, slots=(newest.index,))
    session.join(Groups.alone(1))
    session.load("arena", 4)
    session.leave()
    assert (_state(session), _steps(path)) == (after, [4])


def test_all_bad_snapshots_are_taken_out_at_once_and_a_survivor_restores_from_a_checkpoint(
    path: Path, undisturbed: tuple[list[float], list[bytes]]
) -> None:
    session = _session(path)
    _break_off(session, 4)
    checkpoint = _checkpoint(path, 3)
    _flip(path, 3, 4)
    session.join(Groups.alone(1))
    with pytest.raises(BadSnapshotError):
        session.load("arena", 4)
    assert read_seals([path]) == ({0: ()}, {})
    session.leave()
    session.join(Groups.alone(2))
    session.load("durable", 3, checkpoint)
    losses = _losses(session)
    session.leave()
    assert (losses, _state(session)) == (undisturbed[0][3:], undisturbed[1])


def _checkpoint(path: Path, step: int) -> tuple[npt.NDArray[np.uint8], bytes]:
    with Arena.open(path, writable=False) as arena:
        data, extra = arena.view(step)
        return data.copy(), extra


def _losses(session: Session) -> list[float]:
    hooks = Losses(session)
    session.run(hooks, END)
    return hooks.seen


@pytest.mark.parametrize(
    ("damage", "source", "is_survivor"),
    [
        ("header", "arena", True),
        ("header", "arena", False),
        ("header", "durable", True),
        ("header", "durable", False),
        ("removed", "arena", True),
        ("removed", "durable", True),
        ("counters", "arena", True),
        ("counters", "init", False),
    ],
)
def test_a_damaged_file_is_replaced_so_that_the_run_continues_from_elsewhere(
    path: Path, damage: str, source: Any, is_survivor: bool
) -> None:
    session = _session(path)
    _break_off(session, 4)
    checkpoint = _checkpoint(path, 3)
    if not is_survivor:
        arena_of(session).close()
        session = _session(path)
    with path.open("r+b", buffering=0) as file:
        match damage:
            case "header":
                os.pwrite(file.fileno(), b"\xff", 0)
            case "removed":
                path.unlink()
            case _:
                os.pwrite(file.fileno(), b"\xff" * 8, 128)
    session.join(Groups.alone(1))
    if source == "arena":
        with pytest.raises(BadSnapshotError, match=str(path)):
            session.load("arena", 4)
    else:
        step = 3 if source == "durable" else 0
        session.load(source, step, checkpoint if step else None)
        _losses(session)
        assert _steps(path) == [6, 6], "what it seals now is seen by nobody"
    session.leave()
    assert read_seals([path])[1] == {}


def _exchanged(layout: bytes) -> bytes:
    found: dict[str, Any] = json.loads(layout)
    found["mesh"]["dp"] = 7
    return json.dumps(found).encode()


def test_an_arena_of_another_layout_is_no_source_and_is_replaced(path: Path) -> None:
    session = _session(path)
    train_on(session, 2)
    arena = arena_of(session)
    layout = _exchanged(arena.layout)
    arena.close()
    path.unlink()
    with Arena.create(
        path, run_id=arena.run_id, rank=0, slot_bytes=arena.slot_bytes, layout=layout
    ) as other:
        other.seal(other.begin(2, 0), TrainState(step=2, samples=32).pack())
    session = _session(path)
    session.join(Groups.alone(1))
    with pytest.raises(BadSnapshotError, match="its mesh has dp=7"):
        session.load("arena", 2)
    session.load("init")
    session.leave()
    assert _steps(path) == []


def test_a_snapshot_whose_small_state_is_unreadable_is_bad_although_its_digest_is_right(
    path: Path,
) -> None:
    session = _session(path)
    train_on(session, 2)
    arena = arena_of(session)
    arena.seal(arena.begin(3, 0), b"\x93garbage")
    session.join(Groups.alone(1))
    with pytest.raises(BadSnapshotError, match="unreadable"):
        session.load("arena", 3)
    session.leave()
    assert set(_steps(path)) == {2}


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker of its own run whose rank has sealed steps 3 and 4; without an executor."""
    with private_roots():
        config = one_rank()
        folder = RunDir.create(tmp_path / "run", run_id=new_run_id())
        folder.config.write_text(to_toml(config))
        paths = NodePaths(folder.run_id, 0).create()

        def opener(slot_bytes: int, layout: bytes) -> Arena:
            return open_or_replace(
                paths.segment("arena", 0),
                run_id=folder.run_id,
                rank=0,
                slot_bytes=slot_bytes,
                layout=layout,
            )

        session = Session(config, 0, data_factory=synthetic(config, 0), open_arena=opener)
        _break_off(session, 4)
        arena_of(session).close()
        made = Worker(folder.path, 0, "n0w0")
        yield made
        made.link.close()
        if made._rank is not None:
            made._rank.close()
        failpoints.configure(None)


def test_a_worker_reports_a_bad_snapshot_and_takes_the_next_assignment(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = worker.paths.segment("arena", 0)
    told: list[LeftGeneration] = []
    monkeypatch.setattr(
        worker.link, "send", lambda m: told.append(m) if isinstance(m, LeftGeneration) else None
    )
    monkeypatch.setattr(Session, "run", lambda *_: None)
    _flip(path, 4)
    for generation, step in ((1, 4), (2, 3)):
        restore = Restore(source="arena", step=step)
        worker._jobs.put(Assign(generation=generation, rank=0, restore=restore))
    worker._jobs.put(None)
    assert worker.run() == 0
    (left,) = told
    assert (left.generation, left.reason, left.bad_snapshot) == (1, "error", True)
    assert (left.bad_checkpoint, left.is_fatal) == (False, False)
    assert str(path) in left.detail and "slot " in left.detail and "step 4" in left.detail
    assert worker.view.status == "finished"
    assert worker._rank is not None and worker._rank._session.step == 3
