"""A layer of the user's own: any torch module, through autograd.

The class named by ``model.block`` is built as ``Class(model, layer)`` with the ``Architecture`` and
the layer's number, and called as ``module(x, at)`` with x [seq, micro_batch, hidden] and the
``Positions``; it returns the layer's output in the shape and type of x. Its parameters live in the
flat buffers as every other's do, with the values that the class gave them; buffers are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from headway.trainer.config.architecture import Architecture
from headway.trainer.model.own_module import checked_module, failed, first_values
from headway.trainer.model.positions import Positions
from headway.trainer.model.tape import Tape, VectorGrad
from headway.trainer.state.params import Parameter, ParamSpec, Precision


class OwnBlock:
    """A ``Block`` around ``module``, whose parameters are ``parameters``, by name.

    ``forward`` and ``backward`` raise RefusedError if the user's code fails: it would again.
    """

    def __init__(
        self, path: str, layer: int, module: torch.nn.Module, parameters: dict[str, Parameter]
    ) -> None:
        self._path, self._layer = path, layer
        self._module, self._parameters = module, parameters

    @classmethod
    def of(
        cls,
        model: Architecture,
        layer: int,
        add: Callable[[ParamSpec], Parameter],
        *,
        precision: Precision,
        device: torch.device,
    ) -> OwnBlock:
        """Layer ``layer`` of ``model``, in the compute type; ``add`` makes its parameters.

        Raises:
            RefusedError: the class cannot be used; see ``checked_module``.
        """
        path = str(model.own_block)
        module = checked_module(path, model, layer, precision)
        parameters = {
            name: add(
                ParamSpec(
                    f"layers.{layer}.{name}",
                    tuple(value.shape),
                    None,
                    0,
                    1,
                    value.dim() > 1,
                    init_from=partial(first_values, path, model, layer, name),
                )
            )
            for name, value in module.named_parameters()
        }
        _release(module)
        return cls(path, layer, _with_buffers_on(module, device, precision.param_dtype), parameters)

    def forward(self, x: torch.Tensor, at: Positions, tape: Tape | None) -> torch.Tensor:
        """See ``Block``."""
        with self._named():
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
        """Return the gradient of the input; see ``Block``.

        Autograd gives all gradients at once, so those of the parameters are only added later if
        they are deferred.
        """
        leaves, out = tape.pop()
        grad_x: torch.Tensor
        with self._named():
            grad_x, *grads = torch.autograd.grad(out, leaves, grad, materialize_grads=True)
        for parameter, value in zip(self._parameters.values(), grads, strict=True):
            tape.queue(VectorGrad(parameter, value))
        return grad_x

    def _call(self, x: torch.Tensor, at: Positions, values: list[torch.Tensor]) -> torch.Tensor:
        given = dict(zip(self._parameters, values, strict=True))
        out: torch.Tensor = torch.func.functional_call(self._module, given, (x, at))
        return out

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the block in what its code raises.

        Errors of memory and of a GPU pass unchanged, because another attempt may help.
        """
        try:
            yield
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if isinstance(error, RuntimeError) and self._is_on_gpu():
                raise
            raise failed(self._path, self._layer, error) from error

    def _is_on_gpu(self) -> bool:
        return any(p.data.device.type == "cuda" for p in self._parameters.values())


def _with_buffers_on(
    module: torch.nn.Module, device: torch.device, dtype: torch.dtype
) -> torch.nn.Module:
    for part in module.modules():
        for name, value in part._buffers.items():
            if value is not None:
                kind = dtype if value.is_floating_point() else value.dtype
                part._buffers[name] = value.to(device, kind)
    return module


def _release(module: torch.nn.Module) -> None:
    """Free the module's own parameters; shared ones stay shared.

    Each call is given those of the flat buffers.
    """
    empty: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                meta = torch.empty(value.shape, device="meta")
                part._parameters[name] = empty.setdefault(id(value), torch.nn.Parameter(meta))
