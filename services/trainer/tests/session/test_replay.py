"""A gradient that is wrong before it is added up is named, and is not applied."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.common.config import from_dict
from headway.common.node.arming import arm
from headway.common.node.failpoints import configure
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.testkit.trainer.layouts import GRIDS, small_run
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.errors import SpikeError
from headway.trainer.model.chunk import Chunk
from headway.trainer.parallel.data import DataParallel
from headway.trainer.session import replay
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.replay import Replays
from headway.trainer.session.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")
EVERY, STEPS = 2, 5
CHECKED = 1
"""The first step whose gradients are compared."""
WRONG_CALL = 14
"""Of the first or last stages of two replicas, which do eight passes in a step, and sixteen in the
one that is compared."""
REPLICAS = (
    "the gradients of replica 0, of one of the ranks 0, 2, differ",
    "the gradients of replica 1, of one of the ranks 1, 3, differ",
)
"""Of two stages and two replicas."""
GIVEN_UP = "gradients are not compared: they differ each time they are computed"
Change = Callable[[torch.Tensor], object]


@dataclass
class _Steps(StepHooks):
    """What a rank has done, and what it has said of which step."""

    results: list[StepResult] = field(default_factory=list)
    corrupt: dict[int, str] = field(default_factory=dict)

    def on_step(self, result: StepResult) -> None:
        self.results.append(result)

    def on_corrupt(self, step: int, text: str) -> None:
        self.corrupt[step] = text


def _train(
    grid: str, every: int = EVERY, family: str = "", vp: int = 1, **train: object
) -> list[_Steps]:
    parallel: dict[str, Any] = dict(GRIDS.get(grid, {"dp": 1}))
    size = math.prod(parallel.values())
    if vp > 1:
        parallel |= {"vp": vp, "schedule": "interleaved"}
    settings = small_run("fp32", parallel=parallel, world_size=size, family=family)
    settings["train"] |= {"steps": STEPS, "eval_every": 2, **train}
    settings["health"] = {"replay_every": every, "digest_every": 0}
    config = from_dict(RunConfig, settings)

    def member(groups: Groups) -> _Steps:
        rank = groups.every_rank.rank
        session = Session(config, rank, data_factory=synthetic(config, rank), rehearses=False)
        hooks = _Steps()
        session.join(groups)
        session.load("init")
        with contextlib.suppress(SpikeError):
            session.run(hooks)
        session.leave()
        return hooks

    return over_gloo(config.parallel.grid, member)


def _named(found: list[_Steps]) -> dict[tuple[int, int], str]:
    """What is said, by step and by the rank that says it."""
    return {
        (step, rank): text for rank, one in enumerate(found) for step, text in one.corrupt.items()
    }


def _numbers(found: list[_Steps]) -> list[tuple[str, str]]:
    return [(one.loss.hex(), one.grad_norm.hex()) for one in found[0].results]


def _spoil(patch: pytest.MonkeyPatch, is_done_by: Callable[[int], bool], change: Change) -> None:
    """Some replicas change one gradient wherever they compute it."""
    note = Replays.note

    def spoiled(self: Replays, chunk: int, bucket: int, number: int = 0) -> None:
        if is_done_by(self._dp.rank):
            place = self._context.buckets_of(chunk)[bucket]
            change(self._context.flats[place].grads[2:3])
        note(self, chunk, bucket, number)

    patch.setattr(Replays, "note", spoiled)


@pytest.fixture
def inject(tmp_path: Path) -> Iterator[Callable[[str, int], None]]:
    """``headway inject flip``, or ``nan`` in the first step that is compared."""

    def armed(damage: str, rank: int) -> None:
        configure(tmp_path / "failpoints")
        where = {"rank": rank, "compared": 1} if damage == "flip" else {"step": CHECKED}
        arm(tmp_path / "failpoints", "worker.gradients", f"damage:{damage}", where)

    yield armed
    configure(None)


@pytest.mark.parametrize(
    ("grid", "rank"), [("one", 0), ("dp2", 1), ("dp4", 2), ("tp2xdp2", 3), ("tp2xpp2xdp2", 5)]
)
def test_a_flipped_gradient_is_named_by_its_rank_and_is_not_applied(
    grid: str, rank: int, inject: Callable[[str, int], None]
) -> None:
    inject("flip", rank)
    found = _train(grid)
    named = _named(found)
    assert list(named) == [(CHECKED, rank)]
    text = named[CHECKED, rank]
    assert text.startswith("the gradient of ") and f", of rank {rank}, differs from" in text
    configure(None)
    assert _numbers(found) == _numbers(_train(grid, every=0))


def test_a_value_that_is_never_finite_is_said_to_be_that(
    inject: Callable[[str, int], None],
) -> None:
    inject("nan", 0)
    found = _train("one")
    assert _named(found) == {}
    (bad,) = [one for one in found[0].results if one.skipped]
    assert bad.step == CHECKED
    assert bad.origin is not None and bad.origin.text.startswith("the gradient of ")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_what_goes_on_to_other_stages_is_said_of_the_ranks_of_its_replica(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, calls = getattr(Chunk, direction), itertools.count()

    def once_wrong(self: Chunk, *args: Any, **kwargs: Any) -> Any:
        made = true(self, *args, **kwargs)
        is_source = self.is_first if direction == "forward" else self.is_last
        if is_source and kwargs.get("train", True) and next(calls) == WRONG_CALL:
            passed_on = made.output if direction == "forward" else made
            passed_on.detach().view(-1)[3] *= 1.5
        return made

    monkeypatch.setattr(Chunk, direction, once_wrong)
    found = _train("pp2xdp2")
    ((step, rank),) = _named(found)
    assert step == CHECKED and _named(found)[step, rank] in REPLICAS
    monkeypatch.undo()
    assert _numbers(found) == _numbers(_train("pp2xdp2", every=0))


@pytest.mark.parametrize("grid", ["dp2", "dp4"])
def test_a_copy_of_the_weights_that_changed_is_gathered_anew(
    grid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather_all = DataParallel.gather_all

    def and_spoil(self: DataParallel, step: int) -> None:
        gather_all(self, step)
        if step == CHECKED and self._comm.rank == 1:
            self._flats[0].params[5] *= 1.5

    monkeypatch.setattr(DataParallel, "gather_all", and_spoil)
    found = _train(grid, eval_every=0)
    assert list(_named(found)) == [(CHECKED, 1)]
    monkeypatch.undo()
    assert _numbers(found) == _numbers(_train(grid, every=0, eval_every=0))


def test_of_two_that_always_differ_both_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _spoil(monkeypatch, lambda replica: replica == 1, lambda one: one.mul_(1.5))
    named = _named(_train("dp2"))
    assert list(named) == [(1, 0), (3, 0)]
    assert named[CHECKED, 0].endswith(", of one of the ranks 0, 1, differs")


def test_what_is_not_computed_alike_twice_accuses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, said = random.Random(3), list[str]()
    _spoil(monkeypatch, lambda _: True, lambda one: one.mul_(chance.random()))
    monkeypatch.setattr(replay.log, "warning", lambda text, **_: said.append(text))
    assert _named(_train("dp2")) == {}
    assert said.count(GIVEN_UP) == 1


def test_it_is_said_also_if_a_spike_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _spoil(monkeypatch, lambda replica: replica == 1, lambda one: one.add_(1e9))
    found = _train("dp4", on_spike="stop", spike_window=1, spike_factor=2.0)
    assert list(_named(found)) == [(CHECKED, 1)]
    assert [one.step for one in found[1].results] == [0]


@pytest.mark.parametrize(
    ("grid", "family", "vp"),
    [
        ("dp4", "", 1),
        ("tp2xpp2xdp2", "gpt2", 1),
        ("pp2xdp2", "tied llama", 2),
        ("pp2xdp2", "tied llama", 1),
    ],
)
def test_comparing_changes_no_bit_and_finds_nothing_in_a_healthy_run(
    grid: str, family: str, vp: int
) -> None:
    with_, without = (_train(grid, every, family, vp) for every in (1, 0))
    assert _named(with_) == {}
    assert _numbers(with_) == _numbers(without)


@pytest.mark.parametrize(("start", "stop"), [(0, 8), (1, 8), (0, 7), (3, 80), (64, 141)])
def test_a_digest_reads_each_value_of_a_parameter_and_none_of_its_neighbours(
    start: int, stop: int
) -> None:
    """Those of joined parameters begin anywhere."""
    values = torch.randn(160)
    before = replay.digest_of(values[start:stop])
    for index in range(160):
        changed = values.clone()
        changed[index] += 1
        assert (replay.digest_of(changed[start:stop]) == before) == (not start <= index < stop)
