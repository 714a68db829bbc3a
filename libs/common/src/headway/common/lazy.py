"""Packages whose names load their module on first use (PEP 562), so importing them is cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, **homes: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of ``package``: each module's keyword lists what it provides.

    ``__getattr__, __dir__ = lazy(__name__, ring="RingReader RingWriter", segment="Segment")``. The
    package also lists the names in ``__all__`` and imports them below ``if TYPE_CHECKING``, for
    type checkers and other tools that do not run it; a test compares the three.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home_of[name]}"), name)
        # Cached: otherwise a function named like its module would become the
        # module on its second use.
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted(home_of)
