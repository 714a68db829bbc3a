"""A layer of the user's own: any torch module, through autograd.

The class named by ``model.block`` is built as ``Class(model, layer)`` with the ``Architecture`` and
the layer's number, and called as ``module(x, at)`` with x [seq, micro_batch, hidden] and the
``Positions``; it returns the layer's output in the shape and type of x. Its parameters live in the
flat buffers as every other's do, with the values that the class gave them; buffers are constants.
"""

from __future__ import annotations

import hashlib
import importlib
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from headway.trainer.config.architecture import Architecture
from headway.trainer.errors import RefusedError
from headway.trainer.model.positions import Places, Positions
from headway.trainer.model.tape import Tape, VectorGrad
from headway.trainer.state.params import Parameter, ParamSpec

_drawing = threading.Lock()
NOTE = "see docs/howto/models.md for an example"


class OwnBlock:
    """A ``Block`` around ``module``, whose parameters are ``parameters``, by name."""

    def __init__(self, module: torch.nn.Module, parameters: dict[str, Parameter]) -> None:
        self._module, self._parameters = module, parameters

    @classmethod
    def of(
        cls,
        model: Architecture,
        layer: int,
        add: Callable[[ParamSpec], Parameter],
        device: torch.device,
    ) -> OwnBlock:
        """Layer ``layer`` of ``model``; ``add`` makes its parameters.

        Raises:
            RefusedError: the class cannot be imported, built or called, or changes the shape.
        """
        path = str(model.own_block)
        module = _checked(path, model, layer)
        parameters = {
            name: add(
                ParamSpec(
                    f"layers.{layer}.{name}",
                    tuple(value.shape),
                    None,
                    0,
                    1,
                    value.dim() > 1,
                    init_from=partial(_first_values, path, model, layer, name),
                )
            )
            for name, value in module.named_parameters()
        }
        return cls(module.to(device), parameters)

    def forward(self, x: torch.Tensor, at: Positions, tape: Tape | None) -> torch.Tensor:
        """See ``Block``."""
        if tape is None:
            return self._call(x, at, [p.data for p in self._parameters.values()])
        with torch.enable_grad():
            leaves = [
                t.detach().requires_grad_()
                for t in (x, *(p.data for p in self._parameters.values()))
            ]
            out = self._call(leaves[0], at, leaves[1:])
        tape.push((leaves, out))
        return out.detach()

    def backward(self, grad: torch.Tensor, tape: Tape) -> torch.Tensor:
        """See ``Block``; autograd gives all gradients at once, so those of the parameters are only
        added later if they are deferred."""
        leaves, out = tape.pop()
        grad_x: torch.Tensor
        grad_x, *grads = torch.autograd.grad(out, leaves, grad, materialize_grads=True)
        for parameter, value in zip(self._parameters.values(), grads, strict=True):
            tape.wait(VectorGrad(parameter, value))
        return grad_x

    def _call(self, x: torch.Tensor, at: Positions, values: list[torch.Tensor]) -> torch.Tensor:
        given = dict(zip(self._parameters, values, strict=True))
        out: torch.Tensor = torch.func.functional_call(self._module, given, (x, at))
        return out


def _checked(path: str, model: Architecture, layer: int) -> torch.nn.Module:
    """The module, after a forward with meta tensors, which computes shapes only."""
    try:
        module = _build(path, model, layer)
        meta = torch.device("meta")
        x = torch.empty(model.seq_len, 1, model.hidden, device=meta)
        at = Places(model, torch.float32, meta).of(model.seq_len)
        out = _build(path, model, layer).to(meta)(x, at)
    except Exception as error:  # whatever the user's code raises
        raise RefusedError(
            f"model.block={path!r} failed for layer {layer}: {type(error).__name__}: {error}",
            remedy=f"make it importable by the workers, and callable as (x, at); {NOTE}",
        ) from error
    if not isinstance(out, torch.Tensor) or out.shape != x.shape:
        shape = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise RefusedError(
            f"model.block={path!r} returns {shape} for an x of shape {tuple(x.shape)}",
            remedy=f"return a tensor of the shape of x; {NOTE}",
        )
    return module


def _build(path: str, model: Architecture, layer: int) -> torch.nn.Module:
    package, _, name = path.partition(":")
    found: Any = getattr(importlib.import_module(package), name)
    module = found(model, layer)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"{name} is not a torch.nn.Module")
    return module


def _first_values(
    path: str, model: Architecture, layer: int, name: str, seed: int
) -> npt.NDArray[np.float64]:
    with _drawing:  # torch's generator is one for all threads
        return _all_first_values(path, model, layer, seed)[name]


@lru_cache(maxsize=2)
def _all_first_values(
    path: str, model: Architecture, layer: int, seed: int
) -> dict[str, npt.NDArray[np.float64]]:
    """The values of a new module, drawn from a generator of ``seed`` and ``layer`` alone, so that
    they are the same on every grid."""
    digest = hashlib.blake2b(f"{seed}/layers.{layer}".encode(), digest_size=7).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest, "little"))
        module = _build(path, model, layer)
    return {
        name: value.detach().double().flatten().numpy() for name, value in module.named_parameters()
    }
