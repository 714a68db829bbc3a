"""litgpt's ``GPT`` class, compiled, in our loop: the same layers, its own code and weights.

Needs litgpt, which ``benchmarks.train.outside`` installs.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.train.peer_plain import Trainer
from benchmarks.train.shapes import Shape
from benchmarks.train.turns import Turns
from benchmarks.train.worker import Job


def run(job: Job, turns: Turns) -> None:
    """Train until there are no more turns."""
    import litgpt.model  # before ``ready``, as part of the libraries

    turns.play(lambda: LitTrainer(job, litgpt.model.GPT(_config(job.model))).step)


class LitTrainer(Trainer):
    """Plain torch's trainer around litgpt's model."""

    def __init__(self, job: Job, model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=job.model.init_std)
        self._litgpt = model
        super().__init__(job)

    def _model(self, model: nn.Module) -> nn.Module:
        del model
        return self._litgpt


def _config(shape: Shape) -> object:
    import litgpt.model

    return litgpt.model.Config(
        name=shape.name,
        block_size=shape.seq,
        vocab_size=shape.vocab,
        padded_vocab_size=shape.vocab,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_embd=shape.hidden,
        intermediate_size=4 * shape.hidden,
        bias=False,
        lm_head_bias=False,
        norm_class_name="LayerNorm",
        mlp_class_name="GptNeoxMLP",
        gelu_approximate="none",
        rotary_percentage=1.0,
        parallel_residual=False,
    )
