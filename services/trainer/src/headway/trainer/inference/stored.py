"""Texts from a model on disk: a run's checkpoint, an imported model, or a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch
from headway.common.errors import InputError
from headway.dataloader import Tokenizer
from headway.trainer.exchange.exporting import TYPES
from headway.trainer.exchange.source import StoredModel, open_model
from headway.trainer.inference.decoder import Decoder
from headway.trainer.inference.request import Request, Texts
from headway.trainer.inference.sampling import generate


def write_texts(path: Path, request: Request) -> Texts:
    """Load the whole model into memory and write ``request.count`` texts.

    Raises:
        InputError: the model or its tokenizer cannot be read, or an impossible request.
        CorruptError: the checkpoint is damaged.
    """
    if request.dtype not in TYPES:
        raise InputError(
            f"dtype {request.dtype!r} is unknown", remedy=f"use one of {', '.join(TYPES)}"
        )
    if request.count < 1:
        raise InputError(f"cannot write {request.count} texts", remedy="use --count 1 or more")
    stored = open_model(path, request.step)
    tokenizer = _tokenizer(stored)
    prompt = tokenizer.encode(request.prompt) if request.prompt else []
    if stored.kind == "run" or not prompt:
        prompt = [tokenizer.eod_id, *prompt]  # as texts begin in training
    decoder, texts = _load(stored, TYPES[request.dtype]), []
    for number in range(request.count):
        tokens = generate(
            decoder,
            prompt,
            request.tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed + number,
            stop=tokenizer.eod_id,
        )
        texts.append(tokenizer.decode(list(tokens)))
    return Texts(path, stored.step, request.prompt, tuple(texts))


def _tokenizer(stored: StoredModel) -> Tokenizer:
    if not stored.tokenizer.is_file():
        raise InputError(
            f"there is no {stored.tokenizer}, which the prompt needs",
            remedy="put the model's tokenizer.json there",
        )
    return Tokenizer.load(stored.tokenizer)


def _load(stored: StoredModel, dtype: torch.dtype) -> Decoder:
    weights = stored.weights
    return Decoder(
        stored.model.architecture, {name: weights.read(name).to(dtype) for name in weights.shapes}
    )
