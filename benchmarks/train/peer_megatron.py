"""megatron-core's ``GPTModel`` with tensor parallelism on gloo; its LayerNorm without Apex or
Transformer Engine refuses sequence parallelism.

It creates buffers on CUDA and seeds CUDA's generators, so it needs the shim below to run on a CPU.
Needs megatron-core, which ``benchmarks.train.outside`` installs.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from benchmarks.train.ours import LEARNING_RATE
from benchmarks.train.peer_model import optimizer
from benchmarks.train.peer_plain import CLIP, batches
from benchmarks.train.turns import Turns
from benchmarks.train.worker import Job, connect


class _OnCpu(TorchFunctionMode):
    """Creates on the CPU what is asked for on CUDA."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")) or isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def shim() -> None:
    """What an unmodified megatron-core needs in order to train on a CPU."""
    import megatron.core.tensor_parallel.random as random

    _OnCpu().__enter__()
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda *_: None  # type: ignore[assignment,misc]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign,assignment]
    random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()


def run(job: Job, turns: Turns) -> None:
    """Train until there are no more turns."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    import megatron.core  # noqa: F401

    turns.play(lambda: Rank(job).step)


class Rank:
    """One process's half of the model."""

    def __init__(self, job: Job) -> None:
        from megatron.core import parallel_state
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.transformer.module import Float16Module
        from megatron.core.transformer.transformer_config import TransformerConfig

        connect(job)
        shim()
        self.job = job
        shape, is_narrow = job.model, job.options["precision"] == "bf16"
        parallel_state.initialize_model_parallel(job.world)
        torch.manual_seed(0)
        dtype = torch.bfloat16 if is_narrow else torch.float32
        config = TransformerConfig(
            num_layers=shape.layers,
            hidden_size=shape.hidden,
            num_attention_heads=shape.heads,
            use_cpu_initialization=True,
            params_dtype=dtype,
            pipeline_dtype=dtype,
            bf16=is_narrow,
            tensor_model_parallel_size=job.world,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            add_bias_linear=False,
            gradient_accumulation_fusion=False,
            bias_activation_fusion=False,
            masked_softmax_fusion=False,
            init_method_std=shape.init_std,
        )
        model = GPTModel(
            config,
            get_gpt_layer_local_spec(normalization="LayerNorm"),
            vocab_size=shape.vocab,
            max_sequence_length=shape.seq,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=False,
        )
        self.model: Any = Float16Module(config, model) if is_narrow else model
        self.optimizer = optimizer(self.model, LEARNING_RATE)
        ahead = torch.ones(shape.seq, shape.seq, dtype=torch.bool).triu(1)
        self.mask, self.positions = ahead[None, None], torch.arange(shape.seq)[None]

    def step(self, step: int) -> float:
        """One optimizer step with weights, and moments, in the model's type."""
        self.optimizer.zero_grad(set_to_none=True)
        total, parts = torch.zeros(()), batches(self.job, step)
        for tokens, labels in parts:
            losses = self.model(tokens, self.positions, self.mask, labels=labels)
            loss = losses.float().mean() / len(parts)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)  # of this rank's half
        self.optimizer.step()
        return float(total)
