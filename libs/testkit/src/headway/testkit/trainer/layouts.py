"""The layouts whose numbers must equal a single process's.

A model here is small enough to try them all.

A layout's name is ``<grid>-<schedule>-<block>``, such as ``tp2xpp2-zb-h1-parallel``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

STEPS = 12

BARS = {"fp64": 1e-9, "fp32": 1e-5, "bf16": 0.02}
"""How far a layout may be from the single process.

fp64: step-0 gradient of each parameter, and parameters after the last step, relative to the
tensor's norm. fp32 and bf16: nats of loss at any step. The largest bf16 difference of
the whole matrix is 0.0043.
"""

GRIDS = {
    "tp2": {"tp": 2},
    "pp2": {"pp": 2},
    "dp2": {"dp": 2},
    "dp4": {"dp": 4},
    "tp2xpp2": {"tp": 2, "pp": 2},
    "pp2xdp2": {"pp": 2, "dp": 2},
    "tp2xdp2": {"tp": 2, "dp": 2},
    "tp2xpp2xdp2": {"tp": 2, "pp": 2, "dp": 2},
}
SCHEDULES = ("gpipe", "1f1b", "zb-h1", "zb-v")
INTERLEAVED = ("pp2", "pp2xdp2")
BLOCKS = ("serial", "parallel")
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"preset": "gpt2", "vocab_size": 91},
    "llama": {"preset": "llama", "kv_heads": 2, "rope_scaling": {"factor": 8.0}},
    "tied llama": {"preset": "llama", "kv_heads": 2, "tied": True, "document_end": 7},
    "mistral": {"preset": "mistral", "kv_heads": 2, "window": 5},
    "qwen3": {"preset": "qwen3", "head_dim": 8, "window": 3, "window_layers": [1, 2]},
    "neox": {"preset": "neox", "head_dim": 8, "document_end": 7},
    "multi-query": {"block": "parallel", "bias": "all", "kv_heads": 1},
    "own block": {"block": "headway.testkit.trainer.gated_block:GatedBlock"},
}
"""Models of every preset, with windows, documents and a block of the user's own."""


@dataclass(frozen=True)
class Layout:
    """One grid under one schedule with one kind of block."""

    grid: str
    schedule: str
    block: str
    recompute: str = "none"
    recompute_layers: tuple[int, ...] = ()
    tp_pieces: int = 1
    tp_keep: str = "pieces"
    vp: int | None = None
    """None takes the configuration's default, or 2 with the interleaved schedule."""
    buckets: int | None = None
    family: str = ""
    """The key in ``FAMILIES``; "" is the plain model with ``block``."""
    head_layers: float = 0.0

    @property
    def name(self) -> str:
        """Its name on screens and in files."""
        return f"{self.grid}-{self.schedule}-{self.block}"

    @property
    def world_size(self) -> int:
        """Ranks needed."""
        size = 1
        for degree in GRIDS[self.grid].values():
            size *= degree
        return size

    def config(self, dtype: str, **switches: bool | str) -> dict[str, Any]:
        """A run configuration; ``switches`` go to ``[parallel]``."""
        parallel = {
            **GRIDS[self.grid],
            "schedule": self.schedule,
            "tp_pieces": self.tp_pieces,
            "tp_keep": self.tp_keep,
            "head_layers": self.head_layers,
            **switches,
        }
        vp = 2 if self.vp is None and self.schedule == "interleaved" else self.vp
        if vp is not None:
            parallel["vp"] = vp
        if self.buckets is not None:
            parallel["buckets"] = self.buckets
        settings = small_run(
            dtype, self.block, parallel, world_size=self.world_size, family=self.family
        )
        settings["train"]["recompute"] = self.recompute
        if self.recompute != "none":
            settings["train"]["recompute_layers"] = list(self.recompute_layers)
        return settings


def all_layouts() -> Iterator[Layout]:
    """Every grid under every schedule that applies, both blocks."""
    for block in BLOCKS:
        for grid in GRIDS:
            for schedule in SCHEDULES:
                yield Layout(grid, schedule, block)
        for grid in INTERLEAVED:
            yield Layout(grid, "interleaved", block)


def single(block: str, dtype: str, family: str = "") -> dict[str, Any]:
    """The single process that layouts are compared with."""
    return small_run(dtype, block, {"schedule": "1f1b"}, world_size=1, family=family)


def small_run(
    dtype: str,
    block: str = "serial",
    parallel: dict[str, Any] | None = None,
    *,
    world_size: int,
    family: str = "",
) -> dict[str, Any]:
    """Four layers, no two dimensions equal, weights so large that every part of the model counts.

    Eight micro-batches a step, masked labels among them; the norm is clipped in some
    steps and not in others.
    """
    return {
        "model": {
            "layers": 4,
            "hidden": 24,
            "heads": 4,
            "ffn": 40,
            "vocab_size": 64,
            "seq_len": 16,
            "init_std": 0.3,
            **(FAMILIES[family] if family else {"block": block}),
        },
        "parallel": parallel or {},
        "launch": {"nodes": 1, "ranks_per_node": world_size},
        "train": {
            "steps": STEPS,
            "global_batch_size": 16,
            "micro_batch_size": 2,
            "dtype": dtype,
            "eval_batches": 1,
            "eval_every": 6,
        },
        "optim": {"lr": 1e-2, "warmup_steps": 4, "clip_grad": 2.0},
    }
