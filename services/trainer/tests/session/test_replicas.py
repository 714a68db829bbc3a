"""Copies of weights are compared: a flipped bit is named by its rank, and no number changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.common.config import from_dict
from headway.common.node.arming import arm
from headway.common.node.failpoints import configure
from headway.common.plan.schedule.actions import Kind
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.testkit.trainer.layouts import GRIDS, small_run
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Comm
from headway.trainer.config import RunConfig
from headway.trainer.device.recorder import NoRecorder, Recorder
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.replicas import Replicas
from headway.trainer.session.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")
EVERY, STEPS = 2, 5
CHECKED = (1, 3)
"""Steps whose weights are compared."""


class _Steps(StepHooks):
    """Keeps results, and changes the state after the first step."""

    def __init__(self, session: Session, change: Callable[[Session], object]) -> None:
        self._session, self._change = session, change
        self.results: list[StepResult] = []

    def on_step(self, result: StepResult) -> None:
        self.results.append(result)
        if result.step == 0:
            self._change(self._session)


def _train(
    grid: str, every: int = EVERY, change: Callable[[Session], object] = lambda _: None,
    dtype: str = "fp32", recorder: Callable[[], Recorder] = NoRecorder, family: str = "",
) -> list[list[StepResult]]:  # fmt: skip
    degrees = GRIDS.get(grid, {"tp": 4})
    settings: dict[str, Any] = small_run(
        dtype, parallel=dict(degrees), world_size=math.prod(degrees.values()), family=family
    )
    settings["train"] |= {"steps": STEPS, "eval_every": 0}
    settings["health"] = {"digest_every": every}
    config = from_dict(RunConfig, settings)

    def member(groups: Groups) -> list[StepResult]:
        rank = groups.every_rank.rank
        session = Session(
            config, rank, data_factory=synthetic(config, rank), rehearses=False, recorder=recorder()
        )
        hooks = _Steps(session, change)
        session.join(groups)
        session.load("init")
        session.run(hooks)
        session.leave()
        return hooks.results

    return over_gloo(config.parallel.grid, member)


def _named(found: list[list[StepResult]]) -> dict[tuple[int, int], str]:
    """What is said, by step and by the rank that says it."""
    return {
        (one.step, rank): one.corrupt
        for rank, results in enumerate(found)
        for one in results
        if one.corrupt
    }


@pytest.fixture
def inject(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """``headway inject flip_weight``."""

    def armed(rank: int) -> None:
        configure(tmp_path / "failpoints")
        arm(tmp_path / "failpoints", "worker.weights", "damage:flip", {"rank": rank})

    yield armed
    configure(None)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("grid", "rank"), [("dp2", 1), ("dp4", 2), ("tp2xdp2", 3), ("pp2xdp2", 0)])
def test_a_flipped_copy_is_named_by_its_rank_at_the_next_comparison_and_put_right(
    grid: str, rank: int, dtype: str, inject: Callable[[int], None]
) -> None:
    inject(rank)
    found = _train(grid, dtype=dtype)
    named = _named(found)
    assert list(named) == [(CHECKED[0], rank)]
    text = named[CHECKED[0], rank]
    assert text.startswith("the weights of ") and f", of rank {rank}, differ" in text
    configure(None)
    losses = [
        [one.loss.hex() for one in results] for results in (found[0], _train(grid, dtype=dtype)[0])
    ]
    assert losses[0] == losses[1]


def _flip_norm(session: Session) -> None:
    if session.rank == 1:
        flat = session.flats[0]
        place, low, _ = next(one for one in flat.owned() if one[0].spec.is_replicated)
        assert place.spec.name
        flat.master[low - flat.start : low - flat.start + 1].view(torch.int32).bitwise_xor_(1)


def test_a_master_weight_of_which_there_are_four_copies_is_named_by_its_rank() -> None:
    named = _named(_train("tp4", change=_flip_norm))
    assert list(named) == [(step, 1) for step in CHECKED]
    assert named[CHECKED[0], 1].startswith("the master weights of layers.0.")
    assert named[CHECKED[0], 1].endswith(", of rank 1, differ from those of its peers")


def test_of_two_copies_of_a_master_weight_the_pair_is_named() -> None:
    named = _named(_train("tp2", change=_flip_norm))
    assert list(named) == [(step, 0) for step in CHECKED]
    assert named[CHECKED[0], 0].endswith(", of one of the ranks 0, 1, differ")


def _flip_key(session: Session) -> None:
    if session.rank == 3:
        flat = session.flats[0]
        start = flat.copied[0].start
        flat.master[start : start + 1].view(torch.int32).bitwise_xor_(1)


def test_a_head_that_two_of_four_ranks_share_is_compared_between_them() -> None:
    named = _named(_train("tp4", change=_flip_key, family="llama"))
    assert list(named) == [(step, 2) for step in CHECKED]
    assert "layers.0.attention.qkv.weight, of one of the ranks 2, 3, differ" in named[CHECKED[0], 2]


class _OpenKind(NoRecorder):
    """Knows in which action its rank is."""

    kind = -1

    @contextmanager
    def record(self, kind: int, **fields: int) -> Iterator[int]:
        with super().record(kind, **fields) as slot:
            before, self.kind = self.kind, kind
            yield slot
            self.kind = before


def test_what_a_comparison_waits_in_is_what_its_record_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathered, found = Replicas._gathered, set()

    def noting(self: Replicas, comm: Comm, digests: list[torch.Tensor]) -> list[tuple[float, ...]]:
        recorder = self._context.recorder
        assert isinstance(recorder, _OpenKind)
        found.add(("dp" if comm is self._dp else "tp", recorder.kind))
        return gathered(self, comm, digests)

    monkeypatch.setattr(Replicas, "_gathered", noting)
    _train("tp2xdp2", recorder=_OpenKind)
    assert found == {("dp", Kind.ALL_GATHER), ("tp", Kind.TENSOR_PARALLEL)}


@pytest.mark.parametrize("grid", ["dp4", "tp2xpp2xdp2"])
def test_comparing_changes_no_bit_and_finds_nothing_in_a_healthy_run(grid: str) -> None:
    with_, without = _train(grid, every=1), _train(grid, every=0)
    assert _named(with_) == {}
    assert [(one.loss.hex(), one.grad_norm.hex()) for one in with_[0]] == [
        (one.loss.hex(), one.grad_norm.hex()) for one in without[0]
    ]
