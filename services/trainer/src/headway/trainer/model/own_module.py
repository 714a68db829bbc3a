"""The user's own layer: building it, checking it before a run uses it, and its first weights."""

from __future__ import annotations

import hashlib
import importlib
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from headway.trainer.config.architecture import Architecture
from headway.trainer.errors import RefusedError
from headway.trainer.model.positions import Places
from headway.trainer.state.params import Precision

NOTE = "see docs/howto/models.md for an example"
SHORT = 2
"""Tokens of a forward with real values."""
_drawing = threading.Lock()


def build_module(path: str, model: Architecture, layer: int) -> torch.nn.Module:
    """The module of one layer, on the CPU. Raises whatever the user's code does."""
    package, _, name = path.partition(":")
    found: Any = getattr(importlib.import_module(package), name)
    module = found(model, layer)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"{name} is not a torch.nn.Module")
    return module


def checked_module(
    path: str, model: Architecture, layer: int, precision: Precision
) -> torch.nn.Module:
    """Build the module of a user's block and check it.

    The check is a forward and a backward in the compute type with meta tensors, which have shapes
    only, and a short real forward that must leave the module as it was.

    Raises:
        RefusedError: it cannot be imported, built or called, returns another shape or type, has
            frozen parameters, draws random numbers or changes its buffers.
    """
    try:
        module = build_module(path, model, layer)
        frozen = [name for name, value in module.named_parameters() if not value.requires_grad]
        problem = f"freezes {frozen[0]}" if frozen else _meta_problem(path, model, layer, precision)
    except Exception as error:  # whatever the user's code raises
        raise failed(path, layer, error) from error
    if problem := problem or _side_effect(path, model, layer):
        raise RefusedError(
            f"model.block={path!r} {problem} (layer {layer})",
            remedy="return a tensor of the shape and type of x, train every parameter, and use no "
            f"dropout and no running statistics; {NOTE}",
        )
    return module


def failed(path: str, layer: int, error: BaseException) -> RefusedError:
    """What the user's code raised, with the place where it did."""
    where, trace = "", error.__traceback__
    while trace is not None:
        where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    said = str(error).strip().splitlines()
    return RefusedError(
        f"model.block={path!r} failed in layer {layer}: {type(error).__name__}: "
        f"{said[0] if said else ''} [{where}]",
        remedy=f"make it importable by the workers, and callable as (x, at); {NOTE}",
    )


def first_values(
    path: str, model: Architecture, layer: int, name: str, seed: int
) -> npt.NDArray[np.float32]:
    """Those of one parameter, flat."""
    with _drawing:  # torch's generator is one for all threads
        return _all_first_values(path, model, layer, seed)[name]


def _meta_problem(path: str, model: Architecture, layer: int, precision: Precision) -> str:
    try:
        return _problem(path, model, layer, precision, torch.device("meta"), model.seq_len)
    except NotImplementedError:  # an operation whose shape depends on values
        length = min(SHORT, model.seq_len)
        return _problem(path, model, layer, precision, torch.device("cpu"), length)


def _problem(
    path: str,
    model: Architecture,
    layer: int,
    precision: Precision,
    device: torch.device,
    length: int,
) -> str:
    dtype = precision.param_dtype
    module = build_module(path, model, layer).to(device, dtype)
    x = torch.zeros(length, 1, model.hidden, device=device, dtype=dtype, requires_grad=True)
    out = module(x, Places(model, precision.master_dtype, device).of(length))
    if not isinstance(out, torch.Tensor):
        return f"returns {type(out).__name__}, not a tensor"
    if out.shape != x.shape:
        return f"returns {tuple(out.shape)} for an x of shape {tuple(x.shape)}"
    if out.dtype != x.dtype:
        return f"returns {out.dtype} for an x of {x.dtype}"
    torch.autograd.grad(out.sum(), [x, *module.parameters()], materialize_grads=True)
    return ""


def _side_effect(path: str, model: Architecture, layer: int) -> str:
    """What a short forward changes besides its output; "" also where it needs a whole sequence."""
    module, length = build_module(path, model, layer), min(SHORT, model.seq_len)
    before = {name: value.clone() for name, value in module.named_buffers()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        state = torch.get_rng_state()
        try:
            at = Places(model, torch.float32, torch.device("cpu")).of(length)
            module(torch.zeros(length, 1, model.hidden), at)
        except Exception:  # a module may depend on the whole length; the meta tensors had it
            return ""
        if not torch.equal(torch.get_rng_state(), state):
            return "draws random numbers"
    changed = [n for n, value in module.named_buffers() if not torch.equal(value, before[n])]
    return f"changes its buffer {changed[0]}" if changed else ""


@lru_cache(maxsize=1)
def _all_first_values(
    path: str, model: Architecture, layer: int, seed: int
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the first values of a new module's parameters.

    They are drawn from a generator of ``seed`` and ``layer`` alone, so that they are the same on
    every grid.
    """
    digest = hashlib.blake2b(f"{seed}/layers.{layer}".encode(), digest_size=7).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest, "little"))
        module = build_module(path, model, layer)
    return {
        name: value.detach().float().flatten().numpy() for name, value in module.named_parameters()
    }
