"""Blocks of the user's own: what is refused before a run uses them, and what their errors say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from headway.testkit.trainer.models import Part, random_batch, tiny_model
from headway.trainer.config.architecture import Architecture
from headway.trainer.errors import RefusedError
from headway.trainer.model.positions import Positions
from torch import nn


class Plain(nn.Module):
    def __init__(self, model: Architecture, layer: int) -> None:
        super().__init__()
        del layer
        self.norm = nn.LayerNorm(model.hidden)
        self.map = nn.Linear(model.hidden, model.hidden)

    def forward(self, x: torch.Tensor, at: Positions) -> torch.Tensor:
        del at
        y: torch.Tensor = x + self.map(self.norm(x)).tanh()
        return y


class Dropping(Plain):
    def forward(self, x: torch.Tensor, at: Positions) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x, at), 0.3, self.training)


class Counting(Plain):
    def __init__(self, model: Architecture, layer: int) -> None:
        super().__init__(model, layer)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, at: Positions) -> torch.Tensor:
        self.calls.add_(1)
        return super().forward(x, at)


class Frozen(Plain):
    def __init__(self, model: Architecture, layer: int) -> None:
        super().__init__(model, layer)
        self.map.bias.requires_grad_(False)


class Narrow(Plain):
    def forward(self, x: torch.Tensor, at: Positions) -> torch.Tensor:
        return super().forward(x, at)[..., :-1]


class Double(Plain):
    def forward(self, x: torch.Tensor, at: Positions) -> torch.Tensor:
        return super().forward(x, at).double()


class InPlace(Plain):
    def forward(self, x: torch.Tensor, at: Positions) -> torch.Tensor:
        x += 1.0
        return super().forward(x, at)


class Late(Plain):
    def forward(self, x: torch.Tensor, at: Positions) -> torch.Tensor:
        if x.device.type != "meta" and x.abs().sum() > 0:
            raise ValueError("my own mistake")
        return super().forward(x, at)


def part_of(name: str, precision: str = "bf16") -> Part:
    model = replace(tiny_model(), block=f"{__name__}:{name}")
    return Part(model, precision=precision)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Dropping", "draws random numbers (layer 0)"),
        ("Counting", "changes its buffer calls"),
        ("Frozen", "freezes map.bias"),
        ("Narrow", "returns (16, 1, 23) for an x of shape (16, 1, 24)"),
        ("Double", "returns torch.float64 for an x of torch.bfloat16"),
        ("InPlace", "in-place operation"),
        ("Missing", "has no attribute 'Missing'"),
    ],
)
def test_a_block_that_cannot_be_trained_is_refused_when_it_is_built(name: str, words: str) -> None:
    with pytest.raises(RefusedError) as caught:
        part_of(name)
    assert words in caught.value.message
    assert f":{name}'" in caught.value.message and caught.value.remedy


def test_an_error_in_the_middle_of_a_run_names_block_layer_and_line() -> None:
    part = part_of("Late")
    with pytest.raises(
        RefusedError, match="failed in layer 0: ValueError: my own mistake"
    ) as caught:
        part.run(random_batch(tiny_model()))
    assert "[test_own_block.py:" in caught.value.message


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_every_parameter_of_a_block_has_a_gradient_in_the_master_type(precision: str) -> None:
    part = part_of("Plain", precision)
    part.run(random_batch(tiny_model()), 0.01)
    assert part.flat.grads.dtype is part.precision.master_dtype
    for name, grad in part.grads().items():
        assert bool(grad.any()), name
