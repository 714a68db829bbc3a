"""Reads pickles of dictionaries, lists, strings and numbers that others have written.

A pickle that asks for a class is refused, and one of a few bytes cannot take the machine's memory:
an index of its memo may claim 64 GiB.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import resource
import threading
from collections.abc import Iterator
from typing import Any, Final

import psutil

MAX_EXTRA_BYTES: Final = 8 << 30
"""How far the process may grow while one pickle is read; the largest dumps take about 4 GiB."""
_lock = threading.Lock()


class ForbiddenClass(ValueError):
    """A pickle names a class or a function."""


class _NoClasses(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise ForbiddenClass(f"it asks for the class {module}.{name}: a dump needs none; not read")


def load(data: bytes, max_extra_bytes: int = MAX_EXTRA_BYTES) -> Any:
    """The value in a pickle.

    Raises:
        ForbiddenClass: it names a class. MemoryError: it wants more than ``max_extra_bytes``.
        Exception: it is damaged, which the unpickler reports in many ways.
    """
    with _limited(max_extra_bytes):
        return _NoClasses(io.BytesIO(data)).load()


@contextlib.contextmanager
def _limited(extra_bytes: int) -> Iterator[None]:
    """Let the process grow by no more than ``extra_bytes``; all its threads, so for a short time.

    Where a lower limit is set already, that one stays.
    """
    with _lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = psutil.Process().memory_info().vms + extra_bytes
        if soft != resource.RLIM_INFINITY and soft <= limit:
            yield
            return
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
