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
    holds number ``tp_rank``; None means that every rank holds a replica. ``rows`` limits it to rows
    [start, stop) of that piece, cut along the first dimension; other specs of the same name have
    other rows. ``copies`` ranks hold these same elements, and this one has copy number ``copy``.

    Initial values are normal with ``init_std`` around 0, or, where ``init_std`` is 0, all equal to
    ``init_value``. ``joins_next`` places the next parameter without a gap, so that both are one
    view. ``init_from`` gives all initial values for a seed instead, flat.
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
    rows: tuple[int, int] | None = None
    copy: int = 0
    copies: int = 1
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
        piece = list(self.global_shape)
        if self.tp_dim is not None:
            piece[self.tp_dim] //= self.tp_size
        if self.rows is not None:
            piece[0] = self.rows[1] - self.rows[0]
        return tuple(piece)

    @property
    def numel(self) -> int:
        """Elements of the local piece."""
        return math.prod(self.shape)

    @property
    def skipped(self) -> int:
        """Elements of the flattened piece before its ``rows``."""
        return 0 if self.rows is None else self.rows[0] * math.prod(self.shape[1:])

    @property
    def is_replicated(self) -> bool:
        """True if all tensor-parallel ranks of a group of several hold the same elements."""
        return self.tp_dim is None

    @property
    def is_counted(self) -> bool:
        """Whether this rank counts the elements in sums over tp: one of all that hold them does."""
        return self.copy == 0 if self.tp_dim is not None else self.tp_rank == 0


class Parameter:
    """Memory of a spec, or of several that are neighbours in the flat buffers, as one tensor.

    ``data`` (compute type) and ``grad`` (master type) are views of flat buffers. The rows of the
    first spec are above those of the next.
    """

    __slots__ = ("data", "grad", "specs")

    def __init__(self, *specs: ParamSpec) -> None:
        self.specs = specs
        self.data: torch.Tensor
        self.grad: torch.Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its specs, each once."""
        return tuple(dict.fromkeys(spec.name for spec in self.specs))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of ``data`` and ``grad``."""
        return sum(spec.shape[0] for spec in self.specs), *self.specs[0].shape[1:]

    def bind(self, data: torch.Tensor, grad: torch.Tensor) -> None:
        """Use ``data`` and ``grad``, each of the local shape, from now on."""
        self.data, self.grad = data, grad
