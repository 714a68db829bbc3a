"""Stored weights give the logits of transformers, of the trained model, and of their own cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from headway.common.errors import InputError
from headway.testkit.trainer.huggingface import (
    HAS_TRANSFORMERS,
    VARIANTS,
    WHY_NOT,
    load_saved,
    quiet,
    save_tiny,
)
from headway.testkit.trainer.models import Part, tiny_model
from headway.trainer.config.architecture import PRESETS
from headway.trainer.config.model import ModelConfig
from headway.trainer.exchange.source import open_model
from headway.trainer.inference.decoder import Decoder
from headway.trainer.inference.sampling import generate, next_token

CLOSE = 1e-4
"""Of logits in fp32: the same sums in another order."""
needs_transformers = pytest.mark.skipif(not HAS_TRANSFORMERS, reason=WHY_NOT)


def decoder_of(folder: Path) -> Decoder:
    """The model of a Hugging Face folder."""
    made = open_model(folder)
    names = made.weights.shapes
    return Decoder(made.model.architecture, {name: made.weights.read(name) for name in names})


@needs_transformers
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(variant: str, tmp_path: Path) -> None:
    save_tiny(variant, tmp_path)
    tokens = torch.randint(100, (2, 20), generator=torch.Generator().manual_seed(3))
    with quiet(), torch.no_grad():
        expected = load_saved(tmp_path)(tokens).logits
    decoder = decoder_of(tmp_path)
    found = decoder.logits(tokens, decoder.new_cache())
    assert expected.abs().max() > 1.0
    assert torch.allclose(found, expected, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("window", [None, 5])
def test_logits_equal_those_of_the_trained_model(preset: str, window: int | None) -> None:
    model = replace(
        tiny_model(), preset=preset, block=None, head_dim=8, window=window, vocab_size=60
    )
    part = Part(model, precision="fp32")
    tokens = torch.randint(60, (1, model.seq_len), generator=torch.Generator().manual_seed(3))
    decoder = _decoder(model, part)
    found = decoder.logits(tokens, decoder.new_cache())[0]
    for position in (0, 7, model.seq_len - 1):
        expected = part.chunk.logits(tokens, position)[0, : model.vocab_size]
        assert torch.allclose(found[position], expected, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_the_cache_changes_no_logits(window: int | None) -> None:
    model = replace(tiny_model(), preset="qwen3", block=None, kv_heads=2, window=window)
    decoder = _decoder(model, Part(model, precision="fp32"))
    tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(3))
    whole = decoder.logits(tokens, decoder.new_cache())
    cache = decoder.new_cache()
    pieces = [decoder.logits(piece, cache) for piece in tokens.split([5, 1, 7, 1, 2], 1)]
    assert torch.allclose(torch.cat(pieces, 1), whole, rtol=1e-5, atol=1e-5)


def _decoder(model: ModelConfig, part: Part) -> Decoder:
    """Of the weights of ``part``."""
    specs = part.chunk.buckets[0].params
    weights = {spec.name: part.flat.views(spec.name)[0].view(spec.shape) for spec in specs}
    return Decoder(model.architecture, weights)


def test_top_p_keeps_the_likeliest_tokens_only() -> None:
    logits = torch.tensor([0.1, 0.6, 0.0001, 0.2999]).log()
    draw = torch.Generator().manual_seed(0)
    seen = {next_token(logits, temperature=1.0, top_p=0.8, draw=draw) for _ in range(200)}
    assert seen == {1, 3}
    assert next_token(logits, temperature=0.0, top_p=1.0, draw=draw) == 1
    often = [next_token(logits, temperature=1.0, top_p=1.0, draw=draw) for _ in range(2000)]
    assert abs(often.count(1) / 2000 - 0.6) < 0.05


def test_a_text_depends_on_its_seed_and_ends_before_the_stop_token() -> None:
    model = tiny_model()
    decoder = _decoder(model, Part(model, precision="fp32"))
    first, again, other = (list(generate(decoder, [1, 2], 12, seed=s)) for s in (1, 1, 2))
    assert first == again != other
    assert len(first) == 12
    cut = list(generate(decoder, [1, 2], 12, seed=1, stop=first[5]))
    assert cut == first[: first.index(first[5])]
    assert len(list(generate(decoder, [1] * 10, 20, seed=1))) == 20, "rotary positions do not end"


@pytest.mark.parametrize(
    ("prompt", "options", "wanted"),
    [
        ([], {}, "the prompt has no tokens"),
        ([64], {}, "token 64 of the prompt is not in the vocabulary of 64"),
        ([1], {"top_p": 0.0}, "top_p=0"),
        ([1], {"temperature": -1.0}, "temperature=-1"),
        ([1] * 10, {"count": 7}, "exceed model.seq_len=16"),
    ],
)
def test_bad_requests_are_refused(
    prompt: list[int], options: dict[str, float], wanted: str
) -> None:
    model = replace(tiny_model(), positions="learned")
    decoder = _decoder(model, Part(model, precision="fp32"))
    with pytest.raises(InputError, match=wanted):
        list(generate(decoder, prompt, **{"count": 1, **options}))  # type: ignore[arg-type]


def test_a_block_of_the_users_own_is_refused() -> None:
    model = replace(tiny_model(), block="mine:Block")
    with pytest.raises(InputError, match="cannot run without a cluster"):
        Decoder(model.architecture, {})
