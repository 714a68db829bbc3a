"""Peak matrix-product rates from data sheets, by the name of a GPU."""

from __future__ import annotations

SHEETS = (
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H200", 989e12),
    ("A100", 312e12),
)
"""Part of the name -> dense bf16 FLOP/s of one GPU, from NVIDIA's data sheets; the first that
matches counts."""


def sheet_flops(name: str, dtype: str) -> float | None:
    """The rate of the GPU called ``name`` in FLOP/s; None if it or the type is not listed.

    >>> sheet_flops("NVIDIA H100 80GB HBM3", "bf16")
    989000000000000.0
    """
    if dtype != "bf16":
        return None
    return next((flops for part, flops in SHEETS if part in name), None)
