"""The shape of a run's memory: what ``headway.common.plan.memory`` needs of a configuration."""

from __future__ import annotations

from pathlib import Path

from headway.common.plan.memory import MemoryShape
from headway.common.plan.model_shape import ModelShape
from headway.trainer.config.run import RunConfig

BF16_KERNEL = ("avx512vl", "amx_bf16", "bf16")
"""CPU flags of x86 and Arm with which torch multiplies bf16 without converting it to fp32."""


def model_shape(config: RunConfig) -> ModelShape:
    """The model in numbers."""
    m = config.model.architecture
    return ModelShape(
        layers=m.layers,
        hidden=m.hidden,
        ffn=m.ffn,
        vocab_size=m.vocab_size,
        seq_len=m.seq_len,
        heads=m.heads,
        kv_heads=m.kv_heads,
        head_dim=m.head_dim,
        block="parallel" if m.block == "parallel" else "serial",
        norms=m.norms,
        is_gated=m.is_gated,
        has_rms_norm=m.norm == "rmsnorm",
        bias=m.bias,
        qk_norm=m.qk_norm,
        learned_positions=m.positions == "learned",
        tied=m.tied,
        padded_vocab_size=m.padded_vocab_size,
        windows=tuple(m.window_of(layer) for layer in range(m.layers)),
    )


def memory_shape(
    config: RunConfig, *, dp_rank: int = 0, native_bf16: bool | None = None
) -> MemoryShape:
    """What the memory of this run's ranks depends on; ``auto`` must be resolved.

    ``dp_rank``: the replica; the first has the most micro-batches.
    ``native_bf16``: whether the CPU multiplies bf16; None reads /proc/cpuinfo.

    Raises:
        ConfigError: ``train.dtype`` is ``auto``.
    """
    if native_bf16 is None:
        native_bf16 = config.train.dtype != "bf16" or _has_bf16_kernel()
    return MemoryShape(
        model=model_shape(config),
        grid=config.parallel.grid,
        stages=tuple(config.stages),
        schedule=config.parallel.schedule,
        num_micro_batches=config.micro_batches_of(config.train.global_batch_size, dp_rank),
        micro_batch_size=config.train.micro_batch_size,
        dtype=config.train.dtype,
        device=config.train.device,
        recompute=config.train.recompute,
        recompute_layers=config.train.recompute_layers,
        native_bf16=native_bf16,
        reduces_in_bf16=config.parallel.grad_reduce == "bf16",
        tp_keeps_whole=config.parallel.tp_keep == "whole",
    )


def _has_bf16_kernel() -> bool:
    try:
        words = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return True
    return any(flag in words for flag in BF16_KERNEL)
