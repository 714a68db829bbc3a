"""LAMB on shards and pieces makes the steps of whole tensors in one process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.common.config import from_dict
from headway.testkit.trainer.layouts import BARS, STEPS, Layout, single
from headway.testkit.trainer.pool import WorkerPool
from headway.testkit.trainer.synthetic import SyntheticSource
from headway.testkit.trainer.training import Trained, distance, train_layout
from headway.trainer.config import RunConfig
from headway.trainer.optim.schedule import learning_rate

from services.trainer.tests.model.reference import initial_params, loss_sum

LAYOUTS = [
    Layout("tp2", "1f1b", "serial"),
    Layout("pp2", "zb-h1", "serial"),
    Layout("dp2", "1f1b", "serial"),
    Layout("pp2xdp2", "interleaved", "serial"),
    Layout("tp2xpp2xdp2", "1f1b", "serial"),
    Layout("tp2xpp2xdp2", "zb-h1", "serial"),
]


def train_with_lamb(settings: dict[str, object], steps: int) -> Trained:
    """The first ``steps`` steps of a run in fp64: losses, norms, and parameters at the end.

    Written apart from ``headway.trainer.optim``, after You et al., arXiv 1904.00962, algorithm 2,
    on whole tensors of one process.
    """
    config = from_dict(RunConfig, settings)
    params = initial_params(config.model, config.train.seed)
    names = list(params)
    mean, square = ([torch.zeros_like(params[n]) for n in names] for _ in range(2))
    source, found = SyntheticSource(config, 0, "train", 0), Trained()
    for step in range(steps):
        loss, grads = _gradients(config, params, source)
        norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads))
        found.losses[step], found.norms[step] = loss, norm
        clip = min(1.0, config.optim.clip_grad / norm)
        lr = learning_rate(config.optim, step, config.train.steps)
        with torch.no_grad():
            for index, name in enumerate(names):
                moments = mean[index], square[index]
                update = _update(config, params[name], grads[index] * clip, moments, step + 1)
                params[name] -= lr * update
    found.params = {name: value.detach().numpy() for name, value in params.items()}
    return found


def _gradients(
    config: RunConfig, params: dict[str, torch.Tensor], source: SyntheticSource
) -> tuple[float, list[torch.Tensor]]:
    """Mean loss over the tokens of one global batch, and its gradients."""
    total, num_tokens = torch.zeros((), dtype=torch.float64), 0
    for _ in range(config.num_micro_batches):
        batch = source.next()
        tokens, labels = (torch.from_numpy(a).long() for a in (batch.tokens, batch.labels))
        mask = torch.from_numpy(batch.mask)
        total = total + loss_sum(params, config.model, tokens, labels, mask)
        num_tokens += int(mask.sum())
    loss = total / num_tokens
    return float(loss.detach()), list(torch.autograd.grad(loss, list(params.values())))


def _update(
    config: RunConfig,
    weight: torch.Tensor,
    grad: torch.Tensor,
    moments: tuple[torch.Tensor, torch.Tensor],
    count: int,
) -> torch.Tensor:
    """What the learning rate multiplies: of a matrix scaled by its trust ratio, of a norm not."""
    optim, (mean, square) = config.optim, moments
    mean.copy_(optim.beta1 * mean + (1 - optim.beta1) * grad)
    square.copy_(optim.beta2 * square + (1 - optim.beta2) * grad**2)
    mean_hat = mean / (1 - optim.beta1**count)
    square_hat = square / (1 - optim.beta2**count)
    update = mean_hat / (square_hat.sqrt() + optim.eps)
    if weight.ndim == 1:
        return update
    update = update + optim.weight_decay * weight
    ratio = float(weight.norm()) / float(update.norm())
    return update * min(ratio, optim.max_trust_ratio or math.inf)


def _with_lamb(settings: dict[str, Any], bound: float = 0.0) -> dict[str, Any]:
    settings["optim"] |= {"name": "lamb", "lr": 0.05, "max_trust_ratio": bound}
    return settings


@pytest.fixture(scope="module")
def expected() -> Trained:
    return train_with_lamb(_with_lamb(single("serial", "fp64")), STEPS)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_parameters_equal_those_of_whole_tensors(
    pool: WorkerPool, tmp_path: Path, expected: Trained, layout: Layout
) -> None:
    """``assemble`` also compares the bits of the replicas."""
    settings = _with_lamb(layout.config("fp64"))
    found = train_layout(pool, settings, layout.world_size, tmp_path, STEPS)
    worst, name = distance(found.params, expected.params)
    assert worst < BARS["fp64"], f"{name} differs by {worst:.1e} of its norm"
    for curve in ("losses", "norms"):
        ours, theirs = getattr(found, curve), getattr(expected, curve)
        assert max(abs(ours[step] - theirs[step]) for step in range(STEPS)) < BARS["fp64"]
    assert found.losses[STEPS - 1] < found.losses[0] - 0.5, "it learns"


def test_a_bound_on_the_trust_ratio_holds(
    pool: WorkerPool, tmp_path: Path, expected: Trained
) -> None:
    layout = Layout("tp2xdp2", "1f1b", "serial")
    settings = _with_lamb(layout.config("fp64"), 0.25)
    bounded = train_with_lamb(_with_lamb(single("serial", "fp64"), 0.25), STEPS)
    found = train_layout(pool, settings, layout.world_size, tmp_path, STEPS)
    assert distance(found.params, bounded.params)[0] < BARS["fp64"]
    assert distance(bounded.params, expected.params)[0] > 1e-3, "the bound changes something"


def test_bf16_parameters_follow_their_masters_on_every_replica(
    pool: WorkerPool, tmp_path: Path
) -> None:
    """In bf16 too: replicas are equal bit for bit, and a repeated run gives the same bits."""
    layout = Layout("tp2xdp2", "1f1b", "parallel")
    first, second = (
        train_layout(pool, _with_lamb(layout.config("bf16")), 4, tmp_path / name, 5)
        for name in ("first", "second")
    )
    assert first.losses == second.losses
    assert all((first.params[name] == value).all() for name, value in second.params.items())


def test_a_restored_run_with_every_option_continues_bit_for_bit(
    pool: WorkerPool, tmp_path: Path
) -> None:
    """LAMB, wsd, a batch that grows from step to step, and a spike that is skipped after the
    restore by what the snapshot knows of the steps before it."""
    settings = _with_lamb(Layout("pp2xdp2", "interleaved", "serial").config("bf16"))
    num_steps = 20  # the batch grows and the spike window fills before step 12
    settings["optim"] |= {"schedule": "wsd", "decay_steps": 6}
    settings["train"] |= {
        "steps": num_steps,
        "micro_batch_size": 1,
        "batch_ramp": [4, 4, 120],
        "on_spike": "skip",
        "spike_factor": 1.5,  # the spoiled step has 1.77 or more, depending on the CPU
        "spike_window": 5,
    }
    spoiled = (56, 64)  # step 12; steps have 4 sequences at first, 8 from step 10 on
    options: dict[str, Any] = {"arena": True, "spoiled": spoiled}
    whole = train_layout(pool, settings, 4, tmp_path / "whole", num_steps, **options)
    ignoring = {**settings, "train": {**settings["train"], "on_spike": "ignore"}}
    taken = train_layout(pool, ignoring, 4, tmp_path / "taken", num_steps, **options)
    differ = [step for step in range(num_steps) if taken.losses[step] != whole.losses[step]]
    assert differ == list(range(13, num_steps)), "step 12 was skipped, and no other before it"
    early = train_layout(pool, settings, 4, tmp_path / "broken", 11, **options)
    late = train_layout(
        pool, settings, 4, tmp_path / "broken", num_steps, source="arena", step=11, grads_of=-1,
        **options,
    )  # fmt: skip
    assert {**early.losses, **late.losses} == whole.losses
    assert {**early.norms, **late.norms} == whole.norms
    for name, value in whole.params.items():
        assert (late.params[name] == value).all(), name
