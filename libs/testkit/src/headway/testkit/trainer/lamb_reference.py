"""LAMB once more, on whole tensors of one process: what the sharded optimizer is held against.

Written apart from ``headway.trainer.optim``, after You et al., arXiv 1904.00962, algorithm 2, with
the model of ``reference``.
"""

from __future__ import annotations

import math

import torch
from headway.common.config import from_dict
from headway.testkit.trainer.reference import initial_params, loss_sum
from headway.testkit.trainer.synthetic import SyntheticSource
from headway.testkit.trainer.training import Trained
from headway.trainer.config import RunConfig
from headway.trainer.optim.schedule import learning_rate


def train_with_lamb(settings: dict[str, object], steps: int) -> Trained:
    """The first ``steps`` steps of a run in fp64: losses, norms, and parameters at the end."""
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
