"""AdamW on flat shards against torch's, and the learning rate."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from headway.common.errors import ConfigError
from headway.testkit.trainer.models import Part, random_batch, tiny_model
from headway.trainer.config import OptimConfig, RunConfig
from headway.trainer.optim import base
from headway.trainer.optim.adamw import AdamW
from headway.trainer.optim.schedule import clip_scale, learning_rate
from headway.trainer.state.flat import FlatChunk
from hypothesis import given
from hypothesis import strategies as st

OPTIM = OptimConfig(lr=0.01, weight_decay=0.1)


@pytest.mark.parametrize("block", [65, 1 << 17])
@pytest.mark.parametrize("dp", [1, 3])
def test_twenty_steps_equal_those_of_torch(
    dp: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "BLOCK_ELEMENTS", block)
    part = Part(tiny_model())
    flats = [
        FlatChunk(
            part.chunk.buckets[0].params,
            dp_rank=rank,
            dp_size=dp,
            precision=part.precision,
            moments=AdamW.moments,
        )
        for rank in range(dp)
    ]
    for flat in flats:
        flat.load_master_from_init(1)
    theirs = {
        spec.name: part.flat.views(spec.name)[0].clone().requires_grad_()
        for spec in part.chunk.buckets[0].params
    }
    matrices, norms = ([p for p in theirs.values() if p.ndim == ndim] for ndim in (2, 1))
    torch_adamw = torch.optim.AdamW(
        [{"params": matrices}, {"params": norms, "weight_decay": 0.0}],
        lr=1.0,
        betas=(OPTIM.beta1, OPTIM.beta2),
        eps=OPTIM.eps,
        weight_decay=OPTIM.weight_decay,
    )
    draw = torch.Generator().manual_seed(0)
    for step in range(20):
        lr, grad_scale = 0.01 / (step + 1), 1.0 if step % 2 else 0.37
        whole = torch.randn(flats[0].numel, dtype=torch.float64, generator=draw)
        for place in part.flat.placed:
            theirs[place.spec.name].grad = (whole[place.start : place.stop] * grad_scale).view(
                place.spec.shape
            )
        for group in torch_adamw.param_groups:
            group["lr"] = lr
        torch_adamw.step()
        for flat in flats:
            flat.grads.copy_(whole)
            AdamW(OPTIM).step([flat], lr, step, grad_scale)
    ours = torch.cat([flat.master for flat in flats])
    assert all(torch.equal(flat.param_shard, flat.master) for flat in flats), "cast too"
    for place in part.flat.placed:
        wanted = theirs[place.spec.name].detach().flatten()
        torch.testing.assert_close(ours[place.start : place.stop], wanted, rtol=1e-14, atol=1e-15)


def test_padding_stays_zero_through_training() -> None:
    part = Part(tiny_model())
    for step in range(3):
        part.flat.zero_grads()
        part.run(random_batch(tiny_model(), seed=step), 0.01)
        AdamW(OPTIM).step([part.flat], 0.01, step)
    padding = torch.ones(part.flat.numel, dtype=torch.bool)
    for place in part.flat.placed:
        padding[place.start : place.stop] = False
    assert padding.any()
    assert not part.flat.state.view(3, -1)[:, padding].any()


def test_a_model_learns_a_batch_by_heart() -> None:
    part, batch = Part(tiny_model(init_std=0.05)), random_batch(tiny_model())
    tokens = int(batch.mask.sum())
    losses = []
    for step in range(30):
        part.flat.zero_grads()
        losses.append(part.run(batch, 1 / tokens) / tokens)
        AdamW(OPTIM).step([part.flat], 0.01, step)
    assert losses[0] == pytest.approx(math.log(64), rel=0.1)
    assert losses[-1] < 0.2 * losses[0]


@given(step=st.integers(0, 500), total=st.integers(1, 400), warmup=st.integers(0, 100))
def test_the_rate_stays_between_zero_and_its_peak(step: int, total: int, warmup: int) -> None:
    optim = OptimConfig(lr=1e-3, min_lr=1e-4, warmup_steps=warmup)
    assert 0.0 < learning_rate(optim, step, total) <= optim.lr
    if step >= warmup:
        assert learning_rate(optim, step, total) >= optim.min_lr
        assert learning_rate(optim, step + 1, total) <= learning_rate(optim, step, total)


def test_the_rate_warms_up_peaks_halves_its_way_and_ends_at_the_minimum() -> None:
    optim = OptimConfig(lr=1.0, min_lr=0.2, warmup_steps=4)
    assert [learning_rate(optim, step, 105) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert learning_rate(optim, 54, 105) == pytest.approx(0.6)
    assert learning_rate(optim, 29, 105) == pytest.approx(
        0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2
    )
    assert learning_rate(optim, 104, 105) == pytest.approx(0.2, abs=1e-15)
    assert learning_rate(optim, 1000, 105) == pytest.approx(0.2, abs=1e-15)


@pytest.mark.parametrize("schedule", ["linear", "wsd"])
@given(step=st.integers(0, 500), total=st.integers(1, 400), warmup=st.integers(0, 100))
def test_every_schedule_stays_between_its_ends_and_never_rises_after_the_warm_up(
    schedule: str, step: int, total: int, warmup: int
) -> None:
    optim = OptimConfig(
        lr=1e-3,
        min_lr=1e-4,
        warmup_steps=warmup,
        schedule=schedule,
        decay_steps=30 if schedule == "wsd" else 0,
    )
    rate = learning_rate(optim, step, total)
    assert 0.0 < rate <= optim.lr
    if step >= warmup:
        assert rate >= optim.min_lr
        assert learning_rate(optim, step + 1, total) <= rate
    if step >= max(total - 1, warmup + 1):
        assert rate == pytest.approx(optim.min_lr, rel=1e-12)


def test_wsd_is_stable_until_its_decay_and_linear_falls_evenly() -> None:
    wsd = OptimConfig(lr=1.0, min_lr=0.2, warmup_steps=4, schedule="wsd", decay_steps=10)
    assert [learning_rate(wsd, step, 105) for step in (3, 4, 50, 94)] == [1.0] * 4
    assert [learning_rate(wsd, step, 105) for step in (96, 99, 104, 200)] == pytest.approx(
        [0.84, 0.6, 0.2, 0.2]
    )
    assert learning_rate(wsd, 104, 205) == 1.0, "an extended run stays at its peak for longer"
    linear = OptimConfig(lr=1.0, min_lr=0.2, warmup_steps=4, schedule="linear")
    assert [learning_rate(linear, step, 105) for step in (3, 4, 29, 54, 104)] == pytest.approx(
        [1.0, 1.0, 0.8, 0.6, 0.2]
    )


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"schedule": "wsd"}, "decay_steps=0"),
        ({"schedule": "wsd", "decay_steps": -1}, "decay_steps=-1"),
        ({"decay_steps": 5}, "optim.schedule='cosine'"),
    ],
)
def test_a_decay_without_its_schedule_or_length_is_refused(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        OptimConfig(**settings)


def test_a_decay_that_begins_in_the_warm_up_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"warmup_steps=20 and .*decay_steps=190 .*steps=200"):
        RunConfig(optim=OptimConfig(schedule="wsd", decay_steps=190))


def test_a_large_norm_is_clipped_to_the_limit_and_a_small_one_left_alone() -> None:
    assert clip_scale(OptimConfig(clip_grad=2.0), 8.0) == 0.25
    assert clip_scale(OptimConfig(clip_grad=2.0), 2.0) == 1.0
    assert clip_scale(OptimConfig(clip_grad=0.0), 8.0) == 1.0
