"""A sequence of 32,768 tokens on a CPU: recomputation, a window and the loss in blocks."""

from __future__ import annotations

import torch
from headway.testkit.trainer.models import Part, random_batch
from headway.trainer.config import ModelConfig
from headway.trainer.model.gpt import Recompute
from headway.trainer.worker.memory import MemoryMeter

SEQ = 32_768
VOCABULARY = 8192
LOGITS_BYTES = SEQ * VOCABULARY * 4
SCORES_BYTES = SEQ * SEQ * 4


def test_a_step_of_32k_tokens_needs_neither_its_logits_nor_its_scores() -> None:
    model = ModelConfig(
        preset="llama",
        layers=2,
        hidden=32,
        heads=2,
        kv_heads=1,
        vocab_size=VOCABULARY,
        seq_len=SEQ,
        window=512,
    )
    batch = random_batch(model, 1)
    part = Part(model, precision="fp32", recompute=Recompute("full"))
    meter = MemoryMeter(torch.device("cpu"))
    part.run(batch, 1.0 / SEQ)
    peak = meter.peak()
    assert all(bool(grad.any()) for grad in part.grads().values())
    assert peak < LOGITS_BYTES // 2, f"{peak >> 20} MiB"
    assert peak < SCORES_BYTES // 8
