"""A value that is not finite is traced to its rank, layer and tensor, in every kind of layout."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.common.config import from_dict
from headway.common.node.arming import arm, disarm
from headway.common.node.failpoints import configure
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.testkit.trainer.layouts import GRIDS, small_run
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.session import step as training_step
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session
from headway.trainer.state import spoil as spoiling
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.spoil import Spoiler

pytestmark = pytest.mark.usefixtures("one_thread")
BAD, STEPS = 1, 3
Change = Callable[[Session], object]


class _Steps(StepHooks):
    """Keeps results, and changes the state of its session before step ``BAD``.

    Weights are changed before they are gathered, so runs in which that is done do not gather ahead.
    """

    def __init__(self, session: Session, change: Change) -> None:
        self._session, self._change = session, change
        self.results: list[StepResult] = []

    def on_step(self, result: StepResult) -> None:
        self.results.append(result)
        if result.step + 1 == BAD:
            self._change(self._session)


def _config(grid: str, **parallel: Any) -> RunConfig:
    settings = small_run(
        "fp32", parallel=GRIDS[grid] | parallel, world_size=math.prod(GRIDS[grid].values())
    )
    settings["train"] |= {"steps": STEPS, "eval_every": 0}
    return from_dict(RunConfig, settings)


def _train(config: RunConfig, change: Change = lambda _: None) -> list[list[StepResult]]:
    """The results of each rank."""

    def member(groups: Groups) -> list[StepResult]:
        rank = groups.every_rank.rank
        session = Session(config, rank, data_factory=synthetic(config, rank), rehearses=False)
        hooks = _Steps(session, change)
        session.join(groups)
        session.load("init")
        session.run(hooks)
        session.leave()
        return hooks.results

    return over_gloo(config.parallel.grid, member, joins_ends=config.exchanges_table)


def _origin(found: list[list[StepResult]]) -> tuple[int, str]:
    """What the ranks agree on, and what the named one says of it."""
    results = [results[BAD] for results in found]
    assert all(one.skipped for one in results)
    assert found[0][BAD - 1].origin is None
    origins = [one.origin for one in results if one.origin is not None]
    ranks = {one.rank for one in origins}
    assert len(origins) == len(results) and len(ranks) == 1
    rank = ranks.pop()
    assert [one.text != "" for one in origins] == [place == rank for place in range(len(results))]
    return rank, origins[rank].text


@pytest.fixture
def inject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Has ``headway inject nan`` hit a tensor of a rank: number ``index`` of its chunk."""

    def armed(rank: int, index: int, hit: list[str]) -> None:
        def spoil(damage: str, flat: FlatChunk) -> None:
            assert damage == "nan"
            name = flat.placed[index % len(flat.placed)].spec.name
            flat.views(name)[1].view(-1)[-1] = torch.nan
            hit.append(name)

        monkeypatch.setattr(spoiling, "spoil", spoil)
        path = tmp_path / "failpoints"
        configure(path)
        disarm(path)
        arm(path, "worker.gradients", "damage:nan", {"rank": rank, "step": BAD})

    yield armed
    configure(None)


@pytest.mark.parametrize("grid", ["tp2", "pp2", "dp2", "tp2xpp2", "pp2xdp2", "tp2xdp2"])
def test_an_injected_value_is_named_with_rank_layer_and_tensor(
    grid: str, inject: Callable[..., None]
) -> None:
    config, hit = _config(grid), list[str]()
    drawn = random.Random(grid)
    rank = drawn.randrange(config.parallel.world_size)
    inject(rank, drawn.randrange(100), hit)
    named = _origin(_train(config))
    assert len(set(hit)) == 1 and len(hit) == 2, "the device does it again"
    assert named == (rank, f"the gradient of {hit[0]}, of rank {rank}")


def test_what_does_not_come_back_is_named_as_far_as_it_is_known(
    inject: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, hit = _config("tp2xdp2"), list[str]()
    inject(3, 0, hit)
    spoil = Spoiler.spoil

    def once(self: Spoiler, flat: FlatChunk, chunk: int, step: int, **how: bool) -> None:
        if not hit or step != BAD:
            spoil(self, flat, chunk, step, **how)

    monkeypatch.setattr(Spoiler, "spoil", once)
    rank, text = _origin(_train(config))
    assert rank in (1, 3)
    assert text == (
        f"the gradient of {hit[0]}, of one of the ranks 1, 3; "
        "it did not come back when the step was repeated"
    )


@pytest.mark.parametrize("grid", ["tp2xpp2", "pp2xdp2"])
def test_a_weight_is_named_on_the_rank_that_keeps_it(grid: str) -> None:
    def ruin(session: Session) -> None:
        if session.rank == 2:
            flat = session.flats[0]
            flat.master[3] = flat.param_shard[3] = torch.inf

    rank, text = _origin(_train(_config(grid, overlap_param_gather=False), ruin))
    assert rank == 2
    assert text.startswith("the weights of layers.2.") and text.endswith(", of rank 2")


def test_what_a_layer_makes_of_finite_numbers_is_named_as_its_output() -> None:
    """The weights are finite, their product is not."""

    def enlarge(session: Session) -> None:
        flat = session.flats[0]
        for place, low, high in flat.owned():
            if place.spec.name.startswith("layers.2.") and place.spec.weight_decay:
                flat.master[low - flat.start : high - flat.start] = 3e38
        flat.cast_shard_to_params()

    rank, text = _origin(_train(_config("pp2xdp2", overlap_param_gather=False), enlarge))
    assert (rank, text) == (2, "the output of layers.2, of rank 2")


def test_the_search_changes_no_later_step(
    inject: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config("pp2xdp2", schedule="interleaved", vp=2)
    inject(1, 5, [])
    searched = _train(config)
    monkeypatch.setattr(training_step, "is_reported", lambda _: False)
    inject(1, 5, [])
    plain = _train(config)
    assert searched[0][BAD].origin is not None
    assert plain[0][BAD].skipped and plain[0][BAD].origin is None
    for ours, theirs in zip(searched[0], plain[0], strict=True):
        assert ours.loss.hex() == theirs.loss.hex()
