"""How far apart snapshots are, if that is measured, and that it changes nothing else."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from headway.ckpt_store.config import MOST_STEPS_APART, StoreConfig
from headway.common.config import from_dict
from headway.common.errors import ConfigError
from headway.common.node.arena import Arena
from headway.testkit.trainer.sessions import arena_at, one_rank, train_on
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.session.session import Session
from headway.trainer.session.snapshot_pace import SnapshotPace


def pace(configured: int | str, step_s: list[float], copy_s: list[float]) -> int:
    found = SnapshotPace(configured)
    for seconds in step_s:
        found.note_step(seconds)
    for seconds in copy_s:
        found.note_copy(seconds)
    return found.every


@pytest.mark.parametrize(
    ("step_s", "copy_s", "every"),
    [
        ([], [], 1),
        ([1.0], [], 1),
        ([1.0], [0.4], 1),
        ([1.0], [0.6], 2),
        ([2.0], [2.1], 4),
        ([1.0], [1e6], MOST_STEPS_APART),
        ([1.0, 1.0, 50.0], [0.4, 0.4, 9.0], 1),
        ([0.0], [0.1], MOST_STEPS_APART),
    ],
)
def test_the_copy_takes_half_of_the_time_at_most(
    step_s: list[float], copy_s: list[float], every: int
) -> None:
    assert pace("auto", step_s, copy_s) == every
    assert pace(3, step_s, copy_s) == 3


def test_only_the_newest_times_count() -> None:
    assert pace("auto", [1.0] * 5, [8.0] * 9 + [0.1] * 5) == 1


def test_what_the_driver_relies_on_is_a_multiple_of_every_distance() -> None:
    assert StoreConfig(snapshot_every=3).most_steps_apart == 3
    most = StoreConfig(snapshot_every="auto").most_steps_apart
    assert all(most % pace("auto", [1.0], [2.0**n]) == 0 for n in range(-3, 20))


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
    assert sealed[:2] == [0, 1], "nothing is known at the first ones"
    apart = [after - before for before, after in pairwise(sealed)]
    assert max(apart) >= 4 and len(sealed) < 8


def _losses(path: Path, every: int | Literal["auto"]) -> list[float]:
    config = one_rank(steps=16)
    config = replace(config, ckpt=replace(config.ckpt, snapshot_every=every))
    session = Session(config, 0, data_factory=synthetic(config, 0), open_arena=arena_at(path))
    losses = train_on(session, 16)
    session.close()
    return losses
