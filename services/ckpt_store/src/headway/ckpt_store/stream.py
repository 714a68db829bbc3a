"""The data of a snapshot that is not in memory: tensors one after the other, read once in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt


class TensorStream:
    """The bytes of several tensors as one array of ``nbytes``, of which at most one is in memory.

    Only slices in ascending order can be taken; ``read(name)`` is called once for each tensor.
    """

    def __init__(
        self, tensors: Sequence[tuple[str, int]], read: Callable[[str], npt.NDArray[np.uint8]]
    ) -> None:
        """``tensors`` are names and sizes in bytes; ``read`` returns the bytes of one."""
        self.nbytes = sum(nbytes for _, nbytes in tensors)
        self._waiting, self._read = list(reversed(tensors)), read
        self._rest = np.empty(0, np.uint8)
        self._position = 0

    def __getitem__(self, where: slice) -> npt.NDArray[np.uint8]:
        """The bytes from ``where.start``, where the last slice ended, to ``where.stop``.

        Raises:
            ValueError: it does not begin where the last one ended, or a tensor has another size.
        """
        if where.start != self._position:
            raise ValueError(f"byte {where.start} is asked for after {self._position}")
        piece = np.empty(min(where.stop, self.nbytes) - self._position, np.uint8)
        done = 0
        while done < piece.nbytes:
            if not self._rest.nbytes:
                name, nbytes = self._waiting.pop()
                self._rest = np.empty(0, np.uint8)  # the last tensor is freed before the next
                self._rest = self._read(name)
                if self._rest.nbytes != nbytes:
                    raise ValueError(f"{name} has {self._rest.nbytes} bytes of {nbytes}")
                continue
            part = self._rest[: piece.nbytes - done]
            piece[done : done + part.nbytes] = part
            self._rest = self._rest[part.nbytes :]
            done += part.nbytes
        self._position += piece.nbytes
        return piece
