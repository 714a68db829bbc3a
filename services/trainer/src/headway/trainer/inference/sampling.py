"""Chooses tokens from logits, and writes a text token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from headway.common.errors import InputError
from headway.trainer.inference.decoder import Decoder


def next_token(
    logits: torch.Tensor, *, temperature: float, top_p: float, draw: torch.Generator
) -> int:
    """A token of the distribution given by ``logits`` [vocab_size].

    ``temperature`` 0 takes the likeliest. ``top_p`` keeps the likeliest tokens that together have
    at least that probability (Holtzman et al., arXiv 1904.09751, section 3.1). The sums are made on
    the CPU, where their order is fixed.
    """
    logits = logits.cpu()
    if temperature <= 0.0:
        return int(logits.argmax())
    probabilities, tokens = torch.softmax(logits.double() / temperature, -1).sort(descending=True)
    if top_p < 1.0:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.where(before < top_p, 0.0)
    return int(tokens[torch.multinomial(probabilities, 1, generator=draw)])


def generate(
    decoder: Decoder,
    prompt: Sequence[int],
    count: int,
    *,
    temperature: float = 0.8,
    top_p: float = 1.0,
    seed: int = 0,
    stop: int | None = None,
) -> Iterator[int]:
    """Up to ``count`` tokens after ``prompt``, each as soon as it is known; ends before ``stop``.

    Raises:
        InputError: an impossible argument, or more tokens than learned positions.
    """
    model = decoder.model
    wrong = [token for token in prompt if not 0 <= token < model.vocab_size]
    if wrong or not prompt:
        raise InputError(
            f"token {wrong[0]} of the prompt is not in the vocabulary of {model.vocab_size}"
            if wrong
            else "the prompt has no tokens",
            remedy="use the model's own tokenizer, or give a prompt",
        )
    if count < 1 or temperature < 0.0 or not 0.0 < top_p <= 1.0:
        raise InputError(
            f"count={count}, temperature={temperature:g}, top_p={top_p:g}",
            remedy="use a count of 1 or more, a temperature of 0 or more, and 0 < top_p <= 1",
        )
    if model.positions == "learned" and len(prompt) + count > model.seq_len:
        raise InputError(
            f"{len(prompt)} tokens of the prompt and {count} more exceed "
            f"model.seq_len={model.seq_len}, and the model has learned positions",
            remedy="give a shorter prompt or a smaller --count",
        )
    draw, cache = torch.Generator().manual_seed(seed), decoder.new_cache()
    tokens = torch.tensor([list(prompt)])
    for _ in range(count):
        logits = decoder.logits(tokens, cache)[0, -1]
        token = next_token(logits, temperature=temperature, top_p=top_p, draw=draw)
        if token == stop:
            return
        yield token
        tokens = torch.tensor([[token]])
