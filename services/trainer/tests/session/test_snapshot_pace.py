"""How far apart snapshots are, if that is measured, and that it changes nothing else."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from headway.ckpt_store.config import StoreConfig
from headway.common.config import from_dict
from headway.common.errors import ConfigError
from headway.common.node.arena import Arena
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.sessions import arena_at, one_rank, train_on
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.session.hooks import StepHooks
from headway.trainer.session.session import Session
from headway.trainer.session.snapshot_pace import MOST_STEPS_APART, SnapshotPace
from headway.trainer.state.snapshot import Snapshots


def pace(configured: int | str, steps: list[tuple[float, float | None]]) -> int:
    found = SnapshotPace(configured)
    for step_s, copy_s in steps:
        found.note(step_s, copy_s)
    return found.every


@pytest.mark.parametrize(
    ("steps", "every"),
    [
        ([], 1),
        ([(1.0, 9.0)] * 2, 1),
        ([(1.0, 0.4)] * 3, 1),
        ([(1.0, 0.6)] * 3, 2),
        ([(2.0, 2.1)] * 3, 4),
        ([(1.0, 1e6)] * 3, MOST_STEPS_APART),
        ([(0.0, 0.1)] * 3, MOST_STEPS_APART),
        ([(1.0, 0.4), (50.0, 9.0), (1.0, 0.4)], 1),
        ([(1.0, 8.0)] * 9 + [(1.0, 0.1)] * 5, 1),
        # steps that wait for their copy say less than one that does not
        ([(3.0, 3.0)] * 5 + [(1.0, None)], 8),
    ],
)
def test_the_copy_takes_half_of_the_time_at_most(
    steps: list[tuple[float, float | None]], every: int
) -> None:
    assert pace("auto", steps) == every
    assert pace(3, steps) == 3


@pytest.mark.parametrize("value", [0, -1, "often", 1.5])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="snapshot_every"):
        from_dict(StoreConfig, {"snapshot_every": value})


@pytest.mark.usefixtures("one_thread")
def test_slow_copies_are_made_less_often_with_the_same_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed: list[int] = []
    seal = Arena.seal

    def slow(self: Arena, slot: Any, *args: Any, **options: Any) -> None:
        time.sleep(0.5)  # many steps of this model
        sealed.append(slot.step)
        seal(self, slot, *args, **options)

    losses: dict[str, list[float]] = {}
    for name, every in (("each", 1), ("auto", "auto")):
        if every == "auto":
            monkeypatch.setattr(Arena, "seal", slow)
        losses[name] = _losses(tmp_path / name, every)
    assert losses["auto"] == losses["each"]
    assert sealed[:3] == [0, 1, 2], "too little is known at the first ones"
    apart = [after - before for before, after in pairwise(sealed)]
    assert max(apart) >= 2 and len(sealed) < 14


def test_ranks_take_the_longest_distance_that_one_proposes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks: dict[int, int] = {}
    begun: dict[int, list[int]] = {0: [], 1: []}
    monkeypatch.setattr(
        SnapshotPace, "every", property(lambda _: 4 if ranks[threading.get_ident()] else 1)
    )
    begin = Snapshots.begin

    def noted(self: Snapshots, step: int, *args: Any, **options: Any) -> None:
        begun[ranks[threading.get_ident()]].append(step)
        begin(self, step, *args, **options)

    monkeypatch.setattr(Snapshots, "begin", noted)
    settings = small_run("fp32", parallel={"dp": 2}, world_size=2)
    settings["train"] |= {"steps": 10, "eval_every": 0}
    settings["ckpt"] = {"durable_every": 1000, "snapshot_every": "auto"}
    config = from_dict(RunConfig, settings)

    def member(groups: Groups) -> None:
        rank = groups.every_rank.rank
        ranks[threading.get_ident()] = rank
        session = Session(config, rank, data_factory=synthetic(config, rank))
        session.join(groups)
        session.load("init")
        session.run(StepHooks())

    over_gloo(config.parallel.grid, member)
    assert begun[0] == begun[1]
    assert [step for step in begun[0] if 0 < step < 10] == [4, 8]


def _losses(path: Path, every: int | Literal["auto"]) -> list[float]:
    config = one_rank(steps=16)
    config = replace(config, ckpt=replace(config.ckpt, snapshot_every=every))
    session = Session(config, 0, data_factory=synthetic(config, 0), open_arena=arena_at(path))
    losses = train_on(session, 16)
    session.close()
    return losses
