"""Every family of models, with windows, documents and GQA, against the reference in plain autograd;
bad models are refused before they are built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from headway.common.errors import ConfigError
from headway.testkit.trainer.comm import ThreadComm, run_ranks
from headway.testkit.trainer.models import Part, cut, grad_of, random_batch, tiny_model
from headway.trainer.config import ModelConfig
from headway.trainer.config.architecture import PRESETS, RopeScaling
from headway.trainer.data.batches import borders_of
from headway.trainer.model.gpt import Recompute
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from services.trainer.tests.model.reference import initial_params, loss_sum

EXACT = 1e-9
ROUNDING = 1e-13
"""Of gradients that are 0 in exact arithmetic, such as those of queries with a window of 1."""


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    """A preset, with any of the keys that may be set beside it."""
    preset = draw(st.sampled_from(sorted(PRESETS)))
    changes: dict[str, Any] = {
        "preset": preset,
        "block": draw(st.sampled_from((None, "serial", "parallel"))),
        "kv_heads": draw(st.sampled_from((None, 1, 2, 4))),
        "head_dim": draw(st.sampled_from((None, 8))),
        "vocab_size": draw(st.sampled_from((64, 91))),
        "window": draw(st.sampled_from((None, 1, 3, 5, 16))),
        "document_end": draw(st.sampled_from((None, 7))),
    }
    if changes["window"] is not None:
        changes["window_layers"] = draw(st.sampled_from(((), (1,))))
    if preset == "neox":  # a quarter of 8 is a pair
        changes["head_dim"] = 8
    if changes["block"] == "serial":
        changes |= {"norms": 2, "bias": draw(st.sampled_from((None, "qkv")))}
    if draw(st.booleans()):
        changes["tied"] = draw(st.booleans())
    if preset != "gpt2" and draw(st.booleans()):
        changes["rope_scaling"] = RopeScaling(8.0, 1.0, 4.0, 32)
    return replace(tiny_model(), **changes)


@settings(max_examples=20)
@given(
    model=models(),
    tp=st.sampled_from((1, 2, 4)),
    mode=st.sampled_from(("none", "selective", "full")),
)
def test_a_drawn_model_equals_the_reference(model: ModelConfig, tp: int, mode: str) -> None:
    rows = model.architecture.padded_vocab_size
    assume(model.vocab_size > rows - rows // tp)  # else a run refuses it: a rank without a token
    batch = random_batch(model, 3)
    batch.tokens[0, 4] = batch.tokens[0, 9] = batch.tokens[2, 15] = 7
    borders = borders_of(batch.tokens.numpy(), model.document_end)
    params = initial_params(model, 1)
    wanted = loss_sum(params, model, batch.tokens, batch.labels, batch.mask, borders)
    wanted.backward()

    def member(comm: ThreadComm | None) -> tuple[float, Part]:
        part = Part(model, comm=comm, recompute=Recompute(mode))
        fwd = part.chunk.forward(batch.tokens, batch.labels, batch.mask, borders=borders)
        part.chunk.backward(fwd)
        part.chunk.finish_grads(0)
        return fwd.output.item(), part

    for loss, part in [member(None)] if tp == 1 else run_ranks(tp, member):
        assert loss == pytest.approx(wanted.item(), rel=EXACT)
        assert {spec.name for spec in part.chunk.buckets[0].params} == set(params)
        for spec in part.chunk.buckets[0].params:
            gradient = params[spec.name].grad
            assert gradient is not None
            piece = cut(gradient, spec)
            error = (grad_of(part, spec) - piece).norm()
            assert error <= EXACT * piece.norm() + ROUNDING, (spec.name, spec.tp_rank)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_heads": 3}, "model.kv_heads=3"),
        ({"window": 17}, "model.window=17 of model.seq_len=16"),
        ({"window_layers": (0,)}, "model.window=None"),
        ({"window": 4, "window_layers": (2,)}, "layers from 0 to 1"),
        ({"block": "mine"}, "package.module:Class"),
        ({"block": "package:1st"}, "model.block='package:1st' is unknown"),
        ({"head_dim": 5}, "model.head_dim=5 is not an even"),
        ({"rope_fraction": 0.3}, "model.rope_fraction=0.3"),
        ({"norms": 1}, "model.norms=1 with model.block='serial'"),
        ({"block": "parallel", "bias": "qkv"}, "one norm"),
        ({"document_end": 64}, "model.document_end=64"),
        ({"rope_theta": float("nan")}, "model.rope_theta=nan"),
        ({"rope_theta": 1.0}, "not above 1"),
        ({"init_std": -1.0}, "model.init_std=-1.0"),
        ({"preset": "gpt2", "rope_scaling": RopeScaling(8.0)}, "model.positions='learned'"),
        ({"heads": 5}, "does not split into 5 heads"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(tiny_model(), **changes)
    assert words in f"{caught.value} {caught.value.remedy}"


def test_a_preset_gives_way_to_what_is_set_beside_it() -> None:
    model = ModelConfig(preset="llama", norm="layernorm").architecture
    assert (model.norm, model.mlp, model.tied) == ("layernorm", "swiglu", False)
    assert ModelConfig(preset="llama", hidden=384).architecture.ffn == 1024
    assert ModelConfig(vocab_size=50257).architecture.padded_vocab_size == 50304
