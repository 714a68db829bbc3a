from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node import failpoints
from headway.common.node.testing import no_leaks, private_roots


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder in shared memory of this test's own."""
    with tempfile.TemporaryDirectory(prefix="headway-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def tidy_shm(shm: Path) -> Iterator[Path]:
    """The same; the test fails if it leaves a file, a mapping or a file descriptor."""
    with no_leaks(shm):
        yield shm


@pytest.fixture
def roots() -> Iterator[tuple[Path, Path]]:
    """Socket and shared-memory roots of this test's own, set in the environment."""
    with private_roots() as both:
        yield both


@pytest.fixture(autouse=True)
def failpoints_off() -> Iterator[None]:
    yield
    failpoints.configure(None)
