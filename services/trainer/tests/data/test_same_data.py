"""A resumed run reads on at the sample where it stopped, in the data that it began with."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headway.common.errors import CorruptError
from headway.common.node.arena import Arena
from headway.dataloader.config import DataConfig
from headway.dataloader.formats import TokenFile
from headway.dataloader.prepare import prepare
from headway.testkit.data_daemon import write_tokens
from headway.testkit.trainer.comm import ThreadComm, run_ranks
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.pool import JobFailed, WorkerPool
from headway.testkit.trainer.sessions import VOCABULARY, arena_at, arena_of, one_rank, train_on
from headway.testkit.trainer.synthetic import SyntheticSource
from headway.testkit.trainer.training import train_layout
from headway.trainer.comm.agreement import readers_of_other_data
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import BatchSource, Split
from headway.trainer.errors import RefusedError
from headway.trainer.session.hooks import StepHooks
from headway.trainer.session.session import Session
from headway.trainer.state.train_state import TrainState
from headway.trainer.worker.rank import Rank
from headway.trainer.worker.torchrun import _data

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_resume_with_another_global_batch_neither_repeats_nor_skips_a_sample(
    tmp_path: Path,
) -> None:
    started: list[int] = []
    taken: list[int] = []

    class Watched(SyntheticSource):
        def next(self, abort: Callable[[], bool] | None = None) -> Any:
            batch = super().next(abort)
            if self._split == "train":
                taken.append(batch.sample)
            return batch

    def session(global_batch_size: int) -> Session:
        config = one_rank(global_batch_size=global_batch_size)

        def make(split: Split, start: int, generation: int, fingerprint: str) -> BatchSource:
            del generation, fingerprint
            if split == "train":
                started.append(start)
            return Watched(config, 0, split, start)

        return Session(config, 0, data_factory=make, open_arena=arena_at(tmp_path / "a"))

    train_on(session(8), 3)
    resumed = session(16)
    train_on(resumed, 5, step=3, generation=1)
    train_on(session(8), 6, step=5, generation=2)
    assert started == [0, 24, 56]
    assert taken == list(range(0, 64, 2)), "micro-batches of 2, each sample once"
    assert resumed.samples == 56
    with Arena.open(tmp_path / "a", writable=False) as arena:
        assert TrainState.unpack(arena.view(6)[1]).samples == 64


def _corpus(folder: Path, *, split: str = "") -> Path:
    """Prepared data; those of ``split`` have the same sizes and other tokens than without it."""
    text, draw = folder.with_name(f"{folder.name}-text"), random.Random(3)
    shutil.rmtree(text, ignore_errors=True)
    text.mkdir()
    for number in range(20):
        words = ("".join(draw.choices("abcdefgh", k=draw.randrange(2, 7))) for _ in range(60))
        (text / f"{number}.txt").write_text(" ".join(words))
    data = DataConfig(
        path=str(folder), source=str(text), vocab_size=VOCABULARY, validation_fraction=0.3
    )
    prepare(data, force=True)
    for name in ("train", "validation"):
        for file in folder.glob(f"{name}.*"):
            file.unlink()
        write_tokens(folder / name, [60] * 12, vocab_size=VOCABULARY, seed=int(name == split))
    return folder


def _read(config: RunConfig, folder: Path) -> Session:
    return Session(config, 0, data_factory=_data(config, 0), open_arena=arena_at(folder / "arena"))


@pytest.mark.parametrize("is_same_process", [True, False], ids=["generation", "start"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_other_data_than_the_run_began_with_are_refused_by_name(
    tmp_path: Path, split: str, is_same_process: bool
) -> None:
    config = one_rank(_corpus(tmp_path / "data"), eval_every=2)
    session = _read(config, tmp_path)
    train_on(session, 3)
    _corpus(tmp_path / "data", split=split)
    again = session if is_same_process else _read(config, tmp_path)
    if not is_same_process:
        arena_of(session).close()
    with pytest.raises(RefusedError, match=f"{split}.*changed") as refused:
        train_on(again, 6, step=3, generation=1)
    assert "restore the old data" in str(refused.value)
    assert str(tmp_path / "data") in str(refused.value)


@pytest.mark.parametrize("name", ["train.idx", "train.digests", "validation.idx"])
def test_a_damaged_copy_does_not_end_the_run_and_once_it_is_mended_the_run_goes_on(
    tmp_path: Path, name: str
) -> None:
    config = one_rank(_corpus(tmp_path / "data"), eval_every=2)
    session = _read(config, tmp_path)
    train_on(session, 3)
    file = tmp_path / "data" / name
    whole = file.read_bytes()
    file.write_bytes(whole[:-3] + b"???")
    with pytest.raises(CorruptError, match=file.name):
        train_on(session, 6, step=3, generation=1)
    session.leave()
    file.write_bytes(whole)
    train_on(session, 6, step=3, generation=2)
    assert session.step == 6


def test_a_state_that_does_not_say_which_data_it_has_seen_is_refused(tmp_path: Path) -> None:
    config = one_rank(_corpus(tmp_path / "data"), eval_every=2)
    session = _read(config, tmp_path)
    train_on(session, 2)
    session.join(Groups.alone(1))
    zeros = np.zeros(arena_of(session).slot_bytes, np.uint8)
    session.load("durable", 2, (zeros, TrainState(step=2, samples=32).pack()))
    with pytest.raises(RefusedError, match="step 2 does not say which data"):
        session.run(StepHooks(), 3)


@pytest.mark.parametrize("mark", ["", "-order1"])
def test_a_state_of_another_order_is_refused_not_repeated(tmp_path: Path, mark: str) -> None:
    config = one_rank(_corpus(tmp_path / "data"), eval_every=2)
    session = _read(config, tmp_path)
    train_on(session, 2)
    session.join(Groups.alone(1))
    zeros = np.zeros(arena_of(session).slot_bytes, np.uint8)
    known = TokenFile(tmp_path / "data" / "train").fingerprint() + mark
    session.load("durable", 2, (zeros, TrainState(step=2, samples=32, fingerprint=known).pack()))
    with pytest.raises(RefusedError, match="names another order"):
        session.run(StepHooks(), 3)


def test_the_same_data_go_on_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    config = one_rank(_corpus(tmp_path / "data"), eval_every=2)
    whole = train_on(_read(config, tmp_path), 6)
    first = train_on(_read(config, tmp_path / "broken"), 3)
    _corpus(tmp_path / "data")  # prepared again, with the same result
    rest = train_on(_read(config, tmp_path / "broken"), 6, step=3, generation=1)
    assert first + rest == whole


def test_a_resumed_run_keeps_the_fingerprints_of_its_data(tmp_path: Path) -> None:
    config = one_rank(_corpus(tmp_path / "data"), eval_every=1)
    session = _read(config, tmp_path)
    train_on(session, 2)
    with Arena.open(tmp_path / "arena", writable=False) as arena:
        new = TrainState.unpack(arena.view(2)[1])
    data = {
        split: TokenFile(tmp_path / "data" / split).fingerprint()
        for split in ("train", "validation")
    }
    assert new.fingerprint == f"{data['train']}-order2"
    assert new.validation_fingerprint == f"{data['validation']}-order2"
    session.join(Groups.alone(1))
    extra = TrainState(step=2, samples=32, fingerprint=new.fingerprint)
    zeros = np.zeros(arena_of(session).slot_bytes, np.uint8)
    session.load("durable", 2, (zeros, extra.pack()))
    session.run(StepHooks(), 3)
    session.leave()
    with Arena.open(tmp_path / "arena", writable=False) as arena:
        kept = TrainState.unpack(arena.view(3)[1])
    assert kept.fingerprint == new.fingerprint
    assert kept.validation_fingerprint == new.validation_fingerprint


def test_ranks_that_read_other_data_are_told_by_number_and_those_that_read_none_are_not() -> None:
    prints = ["a", "", "a", "b", "", "c"]

    def member(comm: ThreadComm) -> list[int]:
        device = torch.device("cpu")
        return readers_of_other_data(comm, Channels(), prints[comm.rank], device)

    assert run_ranks(6, member) == [[3, 5]] * 6
    assert run_ranks(
        2, lambda c: readers_of_other_data(c, Channels(), "", torch.device("cpu"))
    ) == [
        [],
        [],
    ]


def test_nodes_with_different_copies_of_the_data_do_not_begin_to_train(
    pool: WorkerPool, tmp_path: Path
) -> None:
    settings = small_run("fp32", parallel={"dp": 2}, world_size=2)
    other = {**settings, "data": {"seed": 7}}  # the synthetic source's data follow from it
    generation = pool.next_generation()
    args = [
        {
            "config": config,
            "rank": rank,
            "generation": generation,
            "folder": str(tmp_path),
            "until": 2,
        }
        for rank, config in enumerate((settings, other))
    ]
    with pytest.raises(JobFailed, match=r"ranks \[1\] read other train data"):
        pool.run("headway.testkit.trainer.training:train", args)
    assert train_layout(pool, settings, 2, tmp_path / "same", 2).losses.keys() == {0, 1}


def test_a_rank_that_waits_for_its_data_leaves_when_its_generation_is_fenced(rank: Rank) -> None:
    rank._session.load("init")
    fenced = threading.Timer(0.3, rank._context.fence.abort, (0,), {"limit_s": 0.0})
    fenced.start()
    with pytest.raises(Aborted):
        rank._session.run(StepHooks())  # nobody serves data on this node
    fenced.join()
    assert rank.config.data.wait_timeout_s > 100
