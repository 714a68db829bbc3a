"""The part of a training step in which the host must not wait for the device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from headway.common.plan.schedule.actions import Kind
from torch.utils._python_dispatch import TorchDispatchMode

WAITING_OPERATIONS = {
    "aten::_local_scalar_dense": "item(), float(tensor) or a branch on a tensor",
    "aten::equal": "torch.equal",
    "aten::is_nonzero": "a branch on a tensor",
    "aten::lift_fresh": "torch.tensor(...): on a GPU a copy from pageable memory",
    "aten::masked_select": "a result whose size depends on values",
    "aten::nonzero": "a result whose size depends on values",
    "aten::repeat_interleave": "a result whose size depends on values",
    "aten::_unique2": "a result whose size depends on values",
}
"""Operations for which the host waits on a GPU, and where they come from."""


class SteadyPart:
    """A recorder that calls ``switch`` with True where a step may not wait, else False.

    A step may wait outside of steps, and inside actions of the kinds ``waits``.
    """

    def __init__(
        self, switch: Callable[[bool], object], waits: Collection[int] = (Kind.NORM,)
    ) -> None:
        self._switch, self._waits = switch, waits
        self._is_step = False
        self.num_steps = 0

    def record(self, kind: int, **fields: int) -> AbstractContextManager[int]:
        """See ``Recorder``."""
        del fields
        if kind == Kind.STEP:
            return self._step()
        return self._wait() if kind in self._waits else nullcontext(-1)

    def name(self, seq: int, collective: int) -> None:
        """See ``Recorder``."""

    def add(self, kind: int, start_ns: int, end_ns: int, *, step: int) -> None:
        """See ``Recorder``."""

    def set_generation(self, generation: int) -> None:
        """See ``Recorder``."""

    @contextmanager
    def _step(self) -> Iterator[int]:
        self._is_step = True
        self._switch(True)
        try:
            yield -1
        finally:
            self._is_step = False
            self._switch(False)
            self.num_steps += 1

    @contextmanager
    def _wait(self) -> Iterator[int]:
        self._switch(False)
        try:
            yield -1
        finally:
            self._switch(self._is_step)


class Operations(TorchDispatchMode):
    """Names of the operations that ran while ``on``, and those for which a GPU's host waits."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on = False
        self.seen: set[str] = set()
        self.waiting: list[str] = []

    def switch(self, on: bool) -> None:
        """Begin or end to look."""
        self.on = on

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at one operation and run it."""
        del types
        if self.on:
            name = func._schema.name
            self.seen.add(name)
            if name in WAITING_OPERATIONS or _takes_mask(name, args):
                self.waiting.append(name)
        return func(*args, **(kwargs or {}))


def _takes_mask(name: str, args: Any) -> bool:
    """Indexing by a mask: the number of its elements that count is read first."""
    if not name.startswith("aten::index"):
        return False
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
    return any(
        isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
        for index in indices
    )
