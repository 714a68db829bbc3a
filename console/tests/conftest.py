"""A made-up live run, in folders of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.console.cli import main
from headway.console.testing import FakeRun

Shell = Callable[..., tuple[int, str, str]]
"""(exit code, stdout, stderr) of a command."""


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


@pytest.fixture
def shell(fake: FakeRun, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A command line about the runs that hold ``fake``."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--runs-dir", str(fake.folder.path.parent)])
        out, err = capsys.readouterr()
        return code, out, err

    return call
