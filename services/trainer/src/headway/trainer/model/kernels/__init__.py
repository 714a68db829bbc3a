"""The small operations between matrix products, as pure functions that torch can compile."""

from headway.trainer.model.kernels.registry import ON_CPU, UNCOMPILED, Kernels, kernels, watching

__all__ = [  # noqa: RUF022 - plain order, as in every other package
    "Kernels",
    "ON_CPU",
    "UNCOMPILED",
    "kernels",
    "watching",
]
