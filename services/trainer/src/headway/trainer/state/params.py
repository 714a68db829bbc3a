"""Parameters before they have memory: name, global shape, split and initial values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from headway.common.errors import ConfigError


@dataclass(frozen=True)
class Precision:
    """The two types of a run: of matrix products, and of sums, moments and master weights."""

    param_dtype: torch.dtype
    master_dtype: torch.dtype

    @classmethod
    def of(cls, name: str) -> Precision:
        """The pair of types for a configured type.

        Raises:
            ConfigError: ``name`` is none of bf16, fp32, fp64.
        """
        try:
            return cls(*_PRECISIONS[name])
        except KeyError:
            raise ConfigError(
                f"unknown compute type {name!r}", remedy=f"use one of {', '.join(_PRECISIONS)}"
            ) from None


_PRECISIONS = {
    "bf16": (torch.bfloat16, torch.float32),
    "fp32": (torch.float32, torch.float32),
    "fp64": (torch.float64, torch.float64),
}


@dataclass(frozen=True)
class ParamSpec:
    """One parameter as one tensor-parallel rank sees it.

    ``tp_dim`` is the dimension that is split into ``tp_size`` equal pieces, of which this rank
    holds number ``tp_rank``; None means that every rank holds a replica. Initial values are normal
    with ``init_std`` around 0, or, where ``init_std`` is 0, all equal to ``init_value``.
    ``joins_next`` places the next parameter without a gap, so that both are one view. ``init_from``
    gives all initial values for a seed instead, flat.
    """

    name: str
    global_shape: tuple[int, ...]
    tp_dim: int | None
    tp_rank: int
    tp_size: int
    weight_decay: bool
    init_std: float = 0.0
    init_value: float = 0.0
    joins_next: bool = False
    init_from: Callable[[int], npt.NDArray[np.float32]] | None = None

    def __post_init__(self) -> None:
        if self.tp_dim is not None and self.global_shape[self.tp_dim] % self.tp_size:
            raise ConfigError(
                f"{self.name}: dimension {self.tp_dim} of {self.global_shape} is not divisible by "
                f"parallel.tp={self.tp_size}",
                remedy="choose parallel.tp as a divisor of it",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the local piece."""
        if self.tp_dim is None:
            return self.global_shape
        return tuple(
            n // self.tp_size if dim == self.tp_dim else n
            for dim, n in enumerate(self.global_shape)
        )

    @property
    def numel(self) -> int:
        """Elements of the local piece."""
        return math.prod(self.shape)

    @property
    def is_replicated(self) -> bool:
        """True if all tensor-parallel ranks of a group of several hold the same elements."""
        return self.tp_dim is None


class Parameter:
    """A spec bound to memory.

    ``data`` (compute type) and ``grad`` (master type) are views of flat buffers.
    """

    __slots__ = ("data", "grad", "spec")

    def __init__(self, spec: ParamSpec) -> None:
        self.spec = spec
        self.data: torch.Tensor
        self.grad: torch.Tensor

    def bind(self, data: torch.Tensor, grad: torch.Tensor) -> None:
        """Use ``data`` and ``grad``, each of the local shape, from now on."""
        self.data, self.grad = data, grad


class JoinedParameter(Parameter):
    """Neighbours in the flat buffers as one matrix.

    The rows of the first are above those of the next.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Parameter, ...]) -> None:
        super().__init__(parts[0].spec)
        self.parts = parts
