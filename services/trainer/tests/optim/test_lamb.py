"""LAMB's norms: which rank counts what, and where the trust ratio is 1."""

from __future__ import annotations

import math

import pytest
import torch
from headway.common.errors import ConfigError
from headway.trainer.config import OptimConfig
from headway.trainer.optim import base
from headway.trainer.optim.choice import make_optimizer, moments
from headway.trainer.optim.lamb import Lamb
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.params import ParamSpec, Precision

OPTIM = OptimConfig(name="lamb", lr=0.1, weight_decay=0.1)
FP64 = Precision.of("fp64")


def flat(tp_rank: int, dp_rank: int, *, tp: int = 2, dp: int = 2) -> FlatChunk:
    """A split matrix, a matrix that tp ranks replicate, and a norm, with known values."""
    specs = [
        ParamSpec("split", (16, 6), 0, tp_rank, tp, True, init_std=0.5),
        ParamSpec("replica", (10, 7), None, tp_rank, tp, True, init_std=0.5),
        ParamSpec("norm", (9,), None, tp_rank, tp, False, init_value=1.0),
    ]
    made = FlatChunk(
        specs, dp_rank=dp_rank, dp_size=dp, precision=FP64, moments=moments(OPTIM), device="cpu"
    )
    made.load_master_from_init(3)
    return made


def fill(chunk: FlatChunk) -> None:
    """Gradients that depend on the parameter's elements alone."""
    for place in chunk.placed:
        chunk.grads[place.start : place.stop] = torch.linspace(
            -1, 1, place.spec.numel, dtype=torch.float64
        )


@pytest.mark.parametrize("block", [7, 1 << 17])
def test_pieces_add_up_to_the_norms_of_the_whole_and_a_replica_counts_once(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "BLOCK_ELEMENTS", block)
    total = torch.zeros(2, 2, dtype=torch.float64)
    for tp_rank in range(2):
        for dp_rank in range(2):
            chunk = flat(tp_rank, dp_rank)
            fill(chunk)
            Lamb(OPTIM, total.add_).step([chunk], 0.1, 0)
    whole = flat(0, 0, tp=1, dp=1)
    replica = next(place for place in whole.placed if place.spec.name == "replica")
    weights = whole.master[replica.start : replica.stop]
    assert float(total[1, 0]) == pytest.approx(float(weights.square().sum()), rel=1e-12)
    split = next(place for place in whole.placed if place.spec.name == "split")
    weights = whole.master[split.start : split.stop]
    assert float(total[0, 0]) == pytest.approx(float(weights.square().sum()), rel=1e-12)


def test_a_norm_takes_adams_update_and_padding_stays_zero() -> None:
    chunk = flat(0, 0, tp=1, dp=1)
    fill(chunk)
    Lamb(OPTIM, lambda _: None).step([chunk], 0.1, 0)
    place = next(place for place in chunk.placed if place.spec.name == "norm")
    gradient = torch.linspace(-1, 1, 9, dtype=torch.float64)
    wanted = 1.0 - 0.1 * gradient / (gradient.abs() + OPTIM.eps)  # of the first step: the sign
    torch.testing.assert_close(chunk.master[place.start : place.stop], wanted, rtol=1e-12, atol=0)
    padding = torch.ones(chunk.numel, dtype=torch.bool)
    for place in chunk.placed:
        padding[place.start : place.stop] = False
    assert padding.any() and not chunk.state.view(3, -1)[:, padding].any()
    assert torch.equal(chunk.param_shard, chunk.master)


@pytest.mark.parametrize("zero", ["weights", "update"])
def test_the_ratio_is_one_where_a_norm_is_zero(zero: str) -> None:
    chunk = flat(0, 0, tp=1, dp=1)
    fill(chunk)
    optim = OptimConfig(name="lamb", weight_decay=0.0)
    target = chunk.master if zero == "weights" else chunk.grads
    target.zero_()
    before = chunk.master.clone()
    Lamb(optim, lambda _: None).step([chunk], 0.1, 0)
    largest = float((chunk.master - before).abs().max())
    assert largest == pytest.approx(0.1 if zero == "weights" else 0.0)


def test_every_matrix_moves_by_the_rate_times_its_own_norm() -> None:
    chunk = flat(0, 0, tp=1, dp=1)
    fill(chunk)
    before = chunk.master.clone()
    Lamb(OPTIM, lambda _: None).step([chunk], 0.01, 0)
    for place in chunk.placed[:2]:
        where = slice(place.start, place.stop)
        moved = float((chunk.master - before)[where].norm())
        assert moved == pytest.approx(0.01 * float(before[where].norm()), rel=1e-12)


def test_a_bound_without_lamb_is_refused_and_the_name_chooses() -> None:
    with pytest.raises(ConfigError, match=r"max_trust_ratio=10 with optim.name='adamw'"):
        OptimConfig(max_trust_ratio=10.0)
    with pytest.raises(ConfigError, match="max_trust_ratio=nan"):
        OptimConfig(name="lamb", max_trust_ratio=math.nan)
    assert isinstance(make_optimizer(OPTIM, lambda _: None), Lamb)
    assert not isinstance(make_optimizer(OptimConfig(), lambda _: None), Lamb)
