"""Aborts in the middle of steps leave the device's memory as it was; a broken device ends its
process."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.common.node.exit_record import ExitRecord
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import private_roots
from headway.common.plan.schedule.actions import Kind
from headway.testkit.trainer.lifetime import Blown, Fuse, census, no_collections
from headway.testkit.trainer.sessions import arena_at, arena_of, one_rank
from headway.testkit.trainer.synthetic import SyntheticBatch, synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.pipeline.executor import Pipeline
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session
from headway.trainer.worker.failures import breaks_device, reason_of

NUM_ABORTS = 20
NUM_STEPS = 2 * NUM_ABORTS + 8


class Watched(Fuse):
    """A fuse that also notes each step's pipeline, by a weak reference."""

    def __init__(self) -> None:
        super().__init__()
        self.pipelines: list[weakref.ref[Pipeline]] = []

    def record(self, kind: int, **fields: int) -> AbstractContextManager[int]:
        if kind == Kind.DATA:  # once per pass
            found = [item for item in gc.get_objects(generation=0) if type(item) is Pipeline]
            self.pipelines += [weakref.ref(item) for item in found]
        return super().record(kind, **fields)


class Losses(StepHooks):
    """Every loss by step; releases what is wanted durable, as a store does."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.seen: dict[int, list[float]] = {}

    def on_step(self, result: StepResult) -> None:
        self.seen.setdefault(result.step, []).append(result.loss)
        arena = arena_of(self._session)
        for info in arena.wanted():
            arena.release(info)


@pytest.fixture
def arena_folder() -> Iterator[Path]:
    """In shared memory, where arenas live: other file systems may refuse a page lock."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def allocated_bytes(device: str) -> int:
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    return census()["tensor_bytes"]


def fail() -> None:
    raise Blown


def generation(
    session: Session, hooks: StepHooks, number: int, until: int, step: int
) -> type[BaseException] | None:
    """Join, restore, train, leave; what ended it early."""
    session.join(Groups.alone(number))
    try:
        session.load("arena" if number else "init", step)
        session.run(hooks, until)
    except Blown as error:
        return type(error)
    finally:
        session.leave()
    return None


@pytest.mark.filterwarnings("ignore:.*reduce_op.*:FutureWarning")  # the census meets it
def test_twenty_recoveries_leave_the_memory_flat(device: str, arena_folder: Path) -> None:
    config = one_rank(steps=NUM_STEPS, dtype="fp32", eval_every=0)
    fuse = Watched()
    session = Session(
        config,
        0,
        data_factory=synthetic(config, 0),
        open_arena=arena_at(arena_folder / "arena"),
        recorder=fuse,
        device=device,
    )
    hooks = Losses(session)
    with no_collections():
        fuse.step = 1
        assert generation(session, hooks, 0, 3, 0) is None
        num_records = fuse.records
        assert num_records > 20
        taken = []
        for number in range(NUM_ABORTS):
            newest = max(info.step for info in arena_of(session).sealed())
            # from the first record of a step to the last
            fuse.step, fuse.records = newest + 1, 0
            fuse.at = 1 + (num_records - 1) * number // (NUM_ABORTS - 1)
            fuse.blow = fail
            assert generation(session, hooks, number + 1, NUM_STEPS, newest) is Blown
            taken.append(allocated_bytes(device))
        newest = max(info.step for info in arena_of(session).sealed())
        fuse.at = 0
        assert generation(session, hooks, NUM_ABORTS + 1, newest + 2, newest) is None
        alive = [ref() for ref in fuse.pipelines if ref() is not None]
    assert len(fuse.pipelines) > NUM_ABORTS and alive == []
    assert len(set(taken)) == 1, f"bytes after each recovery: {taken}"
    exact = device == "cpu"  # a GPU's attention is not: see docs/numerics.md
    for step, losses in hooks.seen.items():
        assert losses == (
            [losses[0]] * len(losses) if exact else pytest.approx([losses[0]] * len(losses), 1e-4)
        ), step
    session.close()


def test_an_error_inside_the_device_ends_the_worker_and_only_that(device: str) -> None:
    """Token 10^6 of a vocabulary of 320: an assertion of the kernel on a GPU, which breaks the CUDA
    context; an IndexError on a CPU, after which the worker is used again."""
    with tempfile.TemporaryDirectory() as folder, private_roots():
        run = RunDir.create(Path(folder) / "run", run_id=new_run_id())
        run.config.write_text("")
        paths = NodePaths(run.run_id, 0).create()
        done = subprocess.run(
            [sys.executable, __file__, str(run.path), device],
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            env=os.environ,
        )
        words = ExitRecord(paths.segment("words", "n0w0")).read()
        seen = json.loads(done.stdout.splitlines()[0])
        if device == "cpu":
            assert done.returncode == 0, done.stderr[-4000:]
            assert seen["breaks"] is False and words is None
            assert done.stdout.endswith("alive, and left\n")
        else:
            assert done.returncode == 1, done.stderr[-4000:]
            assert seen["breaks"] is True and seen["reason"] == "error"
            assert seen["again"], "the error is sticky"
            assert words is not None and words.code == 1
            assert "alive" not in done.stdout


# ---- what follows runs in a process of its own -------------------------------------------------
class BadToken:
    """A source whose third micro-batch has a token that no model knows."""

    fingerprint = "bad"

    def __init__(self, good: Any) -> None:
        self._good, self._taken = good, 0

    def next(self, abort: Callable[[], bool] | None = None) -> SyntheticBatch:
        batch: SyntheticBatch = self._good.next(abort)
        self._taken += 1
        if self._taken != 3:
            return batch
        tokens = batch.tokens.copy()
        tokens[0, 0] = 10**6
        return SyntheticBatch(tokens, batch.labels, batch.mask, batch.sample)

    def close(self) -> None:
        self._good.close()


def _train_on_bad_token(device: str) -> None:
    config = one_rank(eval_every=0)
    good = synthetic(config, 0)

    def data(split: Any, *rest: Any) -> Any:
        source = good(split, *rest)
        return BadToken(source) if split == "train" else source

    session = Session(config, 0, data_factory=data, device=device)
    session.join(Groups.alone())
    session.load("init")
    session.run(StepHooks(), 2)


def _device_is_unusable(device: str) -> bool:
    try:
        torch.zeros(1, device=device).sum().item()
    except Exception as error:
        return breaks_device(error)
    return False


def _serve_once(run_dir: Path, device: str) -> int:
    from headway.common.wire.messages.worker import Assign, Restore
    from headway.trainer.worker import worker as module

    class BadRank:
        rank = 0
        waiting = nullcontext()

        def __init__(self, *_: Any) -> None:
            pass

        def serve(self, *_: Any) -> None:
            try:
                _train_on_bad_token(device)
            except Exception as error:
                seen = {
                    "breaks": breaks_device(error),
                    "reason": reason_of(error),
                    "again": _device_is_unusable(device),
                    "error": f"{type(error).__name__}: {error}"[:300],
                }
                print(json.dumps(seen), flush=True)
                raise

        def count_life(self) -> None:
            pass

    module.Rank = BadRank  # type: ignore[assignment,misc]
    worker = module.Worker(run_dir, 0, "n0w0")
    restore = Restore(source="init", step=0)
    worker._jobs.put(Assign(generation=1, rank=0, restore=restore, commands=()))
    worker._jobs.put(None)
    code = worker.run()
    worker.link.close()
    print("alive, and", worker.view.status, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(_serve_once(Path(sys.argv[1]), sys.argv[2]))
