"""The model's loss and gradients on a device, against plain autograd in fp64 on the CPU."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from headway.testkit.trainer.comm import ThreadComm, run_ranks
from headway.testkit.trainer.models import Batch, Part, cut, random_batch, tiny_model
from headway.trainer.config import ModelConfig
from headway.trainer.model.gpt import Recompute
from headway.trainer.model.kernels import kernels
from headway.trainer.model.positions import Places
from headway.trainer.state.params import ParamSpec

from services.trainer.tests.model import reference

SHAPE = {"hidden": 128, "heads": 2, "ffn": 320, "vocab_size": 512, "seq_len": 128}
"""Heads of 64 and a sequence of 128: what flash and cuDNN attention take."""
BOUNDS = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 0.03}
"""Of each gradient, relative to its norm. bf16: a dozen roundings to 2^-9 lie between the loss and
the first layer; the same weights, rounded once, are used on both sides."""
BLOCKS = ("serial", "parallel")


def model_of(block: str) -> ModelConfig:
    return tiny_model(block, init_std=0.08, **SHAPE)


@cache
def batch() -> Batch:
    return random_batch(model_of("serial"))


@cache
def wanted(block: str, rounded: bool) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss sum and gradients, of weights that were rounded to bf16 if ``rounded``."""
    params = reference.initial_params(model_of(block), seed=1)
    if rounded:
        for value in params.values():
            value.data.copy_(value.data.bfloat16())
    given = batch()
    loss = reference.loss_sum(params, model_of(block), given.tokens, given.labels, given.mask)
    loss.backward()
    return loss.item(), {name: value.grad for name, value in params.items()}


def assert_equal(part: Part, loss: float, block: str, precision: str) -> None:
    expected, grads = wanted(block, precision == "bf16")
    bound = BOUNDS[precision]
    assert loss == pytest.approx(expected, rel=bound)
    found = part.grads()
    assert found.keys() == grads.keys()
    for spec in part.chunk.buckets[0].params:
        assert distance(found[spec.name], grads[spec.name], spec) < bound, spec.name


def distance(found: torch.Tensor, whole: torch.Tensor, spec: ParamSpec) -> float:
    piece = cut(whole, spec)
    return float((found.cpu().double() - piece).norm() / piece.norm())


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("block", BLOCKS)
def test_loss_and_every_gradient_equal_those_of_autograd(
    device: str, block: str, mode: str, precision: str
) -> None:
    part = Part(model_of(block), precision=precision, recompute=Recompute(mode), device=device)
    assert_equal(part, part.run(batch()), block, precision)
    assert part.flat.grads.device.type == device


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
def test_a_split_backward_adds_up_to_the_same_gradients(device: str, precision: str) -> None:
    part = Part(model_of("serial"), precision=precision, device=device)
    fwd = part.forward(batch())
    part.chunk.backward(fwd, weight=False)
    part.chunk.backward_weight(fwd)
    assert_equal(part, fwd.output.item(), "serial", precision)


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("block", BLOCKS)
def test_two_tensor_parallel_ranks_have_the_pieces_of_the_gradients(
    device: str, block: str, pieces: int
) -> None:
    """Two threads with one device: what a collective of NCCL would do, torch does."""

    def member(comm: ThreadComm) -> dict[str, float]:
        part = Part(model_of(block), comm=comm, pieces=pieces, device=device)
        loss = part.run(batch())
        part.chunk.finish_grads(0)
        expected, grads = wanted(block, False)
        assert loss == pytest.approx(expected, rel=1e-9)
        found = part.grads()
        specs = part.chunk.buckets[0].params
        return {s.name: distance(found[s.name], grads[s.name], s) for s in specs}

    for distances in run_ranks(2, member):
        assert max(distances.values()) < 1e-9, distances


@cache
def wanted_of_real_size(model: ModelConfig) -> tuple[float, dict[str, torch.Tensor]]:
    params, given = reference.initial_params(model, seed=1), random_batch(model, 1)
    for value in params.values():
        value.data.copy_(value.data.bfloat16())
    loss = reference.loss_sum(params, model, given.tokens, given.labels, given.mask)
    loss.backward()
    return loss.item(), {name: value.grad for name, value in params.items()}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_with_the_sequence_heads_and_vocabulary_of_a_real_size(compiled: bool) -> None:
    model = ModelConfig(layers=2, hidden=256, heads=2, seq_len=2048, vocab_size=50304)
    part = Part(model, precision="bf16", compile_kernels=compiled, device="cuda")
    loss = part.run(random_batch(model, 1))
    expected, grads = wanted_of_real_size(model)
    assert loss == pytest.approx(expected, rel=1e-3)
    found = part.grads()
    far = {s.name: distance(found[s.name], grads[s.name], s) for s in part.chunk.buckets[0].params}
    assert max(far.values()) < BOUNDS["bf16"], far


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("head_dim", [64, 128])
def test_cudnn_and_flash_attention_take_the_heads_as_they_are(head_dim: int) -> None:
    cuda, backends = torch.device("cuda"), torch.backends.cuda
    model = ModelConfig(hidden=4 * head_dim, heads=4, seq_len=256).architecture
    rope = Places(model, torch.float32, cuda).of(256).rope
    assert rope is not None
    qkv = torch.randn(256, 2, 4 * 3 * head_dim, device=cuda, dtype=torch.bfloat16)
    split = kernels(cuda, compile_each=False).split_heads(qkv, *rope, 1)
    heads = [part.requires_grad_() for part in split]
    asked = backends.SDPAParams(*heads, None, 0.0, True, False)
    assert backends.can_use_cudnn_attention(asked, debug=True)
    assert backends.can_use_flash_attention(asked, debug=True)
    out = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    # so joining the heads copies nothing
    assert out.permute(2, 0, 1, 3).flatten(2).data_ptr() == out.data_ptr()
