"""A run for drivers that tests start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import private_roots
from headway.testkit.played.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A run for drivers that the test starts."""
    with private_roots(), contextlib.closing(Place(tmp_path)) as made:
        yield made
