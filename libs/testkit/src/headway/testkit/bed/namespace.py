"""Runs code in another network namespace, which no process needs to keep open."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headway.testkit.bed import kernel

_T = TypeVar("_T")


class Namespace:
    """A network namespace; it exists for as long as this object or a process in it does."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def new(cls) -> Namespace:
        """Make a network namespace with a loopback device that is down."""

        def leave() -> int:
            kernel.unshare(kernel.NEW_NETWORK)
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY)

        return cls(_in_a_thread(leave))

    @classmethod
    def of(cls, pid: int) -> Namespace:
        return cls(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY))

    def call(self, do: Callable[[], _T]) -> _T:
        """``do()`` in a thread that is in this namespace; sockets it opens stay there."""

        def within() -> _T:
            kernel.enter(self._fd, kernel.NEW_NETWORK)
            return do()

        return _in_a_thread(within)

    def batch(self, tool: str, lines: Sequence[str]) -> None:
        """Commands of ``ip`` or ``tc``. Raises OSError with what the kernel refused."""
        if not lines:
            return
        done = self.call(
            lambda: subprocess.run(
                [tool, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True
            )
        )
        if done.returncode:
            raise OSError(f"{tool}: {' '.join(done.stderr.split())} (of: {'; '.join(lines)})")

    def close(self) -> None:
        os.close(self._fd)


def _in_a_thread(do: Callable[[], _T]) -> _T:
    """A namespace of the network belongs to a thread; this one ends with the call."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()
