"""A made-up live run, in folders of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.console.testing import FakeRun


@pytest.fixture
def own_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shared memory, sockets and cache of this test alone."""
    monkeypatch.setenv("HEADWAY_SHM_ROOT", str(tmp_path / "shm"))
    monkeypatch.setenv("HEADWAY_SOCK_ROOT", str(tmp_path / "sock"))
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def fake(own_roots: Path) -> Iterator[FakeRun]:
    """A live run named ``fake`` below ``runs``, at step 0."""
    made = FakeRun(own_roots / "runs")
    yield made
    made.close()
