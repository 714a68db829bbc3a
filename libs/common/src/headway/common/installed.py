"""Which Headway and which torch are installed here: all machines of a run must have the same."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Iterable
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.node.files import files_below

PACKAGES = ("ckpt_store", "common", "controller", "dataloader", "health", "launch", "trainer")
"""What a node runs."""


def version() -> str:
    """Headway's version, the same at all commits between two releases.

    Raises:
        HeadwayError: it is not installed.
    """
    try:
        return importlib.metadata.version("headway-launch")
    except importlib.metadata.PackageNotFoundError as error:
        raise HeadwayError(
            "Headway is not installed here, only found", remedy="install it with pip"
        ) from error


@functools.cache
def source() -> str:
    """Digest of Headway's source: 16 hex digits.

    It covers names and content of the modules that a node runs, as this process first found them,
    and takes about 20 ms.

    Raises:
        OSError: they cannot be read.
    """
    return read_source()


def read_source() -> str:
    """The digest of ``source``, computed from the files as they are now. Raises OSError."""
    return digest_of(Path(root) for root in sys.modules["headway"].__path__)


def digest_of(roots: Iterable[Path]) -> str:
    """The digest of ``source``, of the packages below these folders. Raises OSError.

    Each of the folders has some of the packages.

    A package that lies in several is read where an import finds it: in the first with its
    ``__init__.py``. A folder without may be left of a package that has moved.
    """
    places = list(roots)
    found = {
        path.relative_to(root).as_posix(): path
        for package in PACKAGES
        for root in [place for place in places if (place / package / "__init__.py").is_file()][:1]
        for path in files_below(root / package)
        if path.suffix == ".py"
    }
    digest = hashlib.sha256()
    for name, path in sorted(found.items()):
        content = path.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def torch() -> str:
    """The version of torch, which is not imported; empty where it is not installed."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
