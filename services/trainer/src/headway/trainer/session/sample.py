"""Generates tokens with the trained model: every rank runs its stage, the last one samples."""

from __future__ import annotations

import numpy as np
import torch
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.session.context import StepContext
from headway.trainer.state.params import Precision

TEMPERATURE = 0.8


@torch.no_grad()
def sample_text(
    parts: StepContext, prompt: list[int], count: int, *, temperature: float = TEMPERATURE
) -> list[int]:
    """Return at most ``count`` tokens after ``prompt``, equal on all ranks.

    They depend on weights, ``train.seed`` and the arguments only.

    The whole text, rounded up to a multiple of tp, has at most ``seq_len`` tokens, the number of
    positions of the model. Every replica computes the same; nothing is cached, so each token costs
    one forward over the whole text.

    Raises:
        Aborted: the generation was fenced.
    """
    config, groups, tp = parts.config, parts.groups, parts.tp
    dtype = Precision.of(config.train.dtype).param_dtype
    pipe, vocabulary = groups.pipe, np.random.Generator(np.random.Philox(config.train.seed))
    count = min(count, config.model.seq_len // tp.size * tp.size - len(prompt))
    length = -(-(len(prompt) + count) // tp.size) * tp.size
    text = torch.zeros((1, length), dtype=torch.int64, device=parts.device)
    text[0, : len(prompt)] = torch.tensor(prompt)
    stage_map, num_stages = pipe.stage_map, len(parts.chunks) * pipe.size
    for position in range(len(prompt) - 1, len(prompt) - 1 + count):
        uniform = float(vocabulary.random())
        picked = torch.zeros(1, dtype=torch.float64, device=parts.device)
        x = text
        for stage in stage_map.stages_of(pipe.rank, len(parts.chunks)):
            chunk = parts.chunks[stage_map.place(stage)[1]]
            before, after = (stage_map.place(other)[0] for other in (stage - 1, stage + 1))
            if stage > 0 and before != pipe.rank:
                x = torch.empty(
                    (length // tp.size, 1, config.model.hidden),
                    dtype=dtype,
                    device=parts.device,
                )
                pipe.recv("forward", x, before, stage).wait()
            if stage == num_stages - 1:
                logits = chunk.logits(x, position)
                picked[0] = sample_next(logits, tp, temperature=temperature, uniform=uniform).item()
            else:
                x = chunk.forward(x, train=False).output
                if after != pipe.rank:
                    pipe.send("forward", x, after, stage + 1).wait()
        groups.every_rank.all_reduce(picked, "max").wait()
        text[0, position + 1] = int(picked.item())
    return [int(token) for token in text[0, len(prompt) : len(prompt) + count]]


@torch.no_grad()
def sample_next(
    logits: torch.Tensor, tp: TensorParallel, *, temperature: float = 0.0, uniform: float = 0.0
) -> torch.Tensor:
    """The next token of each sequence, [micro_batch] int64 on the CPU, equal on all tp ranks.

    The probabilities, a few kB, are added up on the CPU: on GPUs the order of a cumulated sum is
    not fixed, and ``train.deterministic`` refuses it (torch.use_deterministic_algorithms).

    Args:
        logits: this rank's piece [micro_batch, vocab/tp], as ``Chunk.logits`` returns it.
        temperature: 0 takes the likeliest token, the lowest id among equals.
        uniform: a number in [0, 1) from the caller's generator, equal on all ranks; the sample is
            the token where the cumulated probability passes it.
    """
    whole = _gather_vocabulary(logits, tp).cpu().double()
    if temperature <= 0.0:
        return whole.argmax(-1)
    cumulated = torch.softmax(whole / temperature, -1).cumsum(-1)
    threshold = (cumulated[:, -1:] * uniform).contiguous()
    return torch.searchsorted(cumulated, threshold, right=True)[:, 0].clamp_(max=whole.shape[1] - 1)


def _gather_vocabulary(logits: torch.Tensor, tp: TensorParallel) -> torch.Tensor:
    """Join [micro_batch, vocab/tp] pieces to [micro_batch, vocab]."""
    pieces = tp.join(logits[None]).wait()  # [tp, micro_batch, vocab/tp]
    return pieces.permute(1, 0, 2).flatten(1)
