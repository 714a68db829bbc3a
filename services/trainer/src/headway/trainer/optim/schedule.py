"""The learning rate of an update: linear warm-up, then a decay to ``min_lr``."""

from __future__ import annotations

import math

from headway.trainer.config import OptimConfig


def learning_rate(optim: OptimConfig, step: int, total_steps: int) -> float:
    """Rate of the update after ``step`` others in a run of ``total_steps`` steps.

    The first warm-up step already moves (``lr / warmup_steps``), step ``warmup_steps`` uses ``lr``,
    the last step uses ``min_lr``, and later ones too. In between:

    - ``cosine``: half a cosine (SGDR without restarts, arXiv 1608.03983);
    - ``linear``: a straight line (BERT, arXiv 1810.04805, appendix A.2);
    - ``wsd``: warm-up, stable, decay (MiniCPM, arXiv 2404.06395, section 4): ``lr`` until
      ``decay_steps`` before the last step, then a straight line, one of the forms of Haegele et
      al., arXiv 2405.18392, section 3.

    A skipped step is not an update, as in Megatron-LM (``training.py``: the scheduler advances only
    after a successful update): the next one repeats its rate, so a warm-up is never cut short, and
    a run with n skipped steps ends n steps before ``min_lr``.
    """
    if step < optim.warmup_steps:
        return optim.lr * (step + 1) / optim.warmup_steps
    last, first = total_steps - 1, optim.warmup_steps
    if optim.schedule == "wsd":
        first = max(first, last - optim.decay_steps)
    progress = min(1.0, max(0, step - first) / max(1, last - first))
    if optim.schedule == "cosine":
        return optim.min_lr + (optim.lr - optim.min_lr) * 0.5 * (1.0 + math.cos(math.pi * progress))
    return optim.min_lr + (optim.lr - optim.min_lr) * (1.0 - progress)


def clip_scale(optim: OptimConfig, grad_norm: float) -> float:
    """Return the factor that brings a global gradient norm down to ``clip_grad``.

    It is 1 if the norm is below, or clipping is off.
    """
    if optim.clip_grad <= 0.0 or grad_norm <= optim.clip_grad:
        return 1.0
    return optim.clip_grad / grad_norm
