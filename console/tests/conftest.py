"""A made-up live run, in folders of the test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from headway.ckpt_store.client import CheckpointClient
from headway.common.config import to_toml
from headway.console.cli import main
from headway.console.testing import SMALL, FakeRun
from headway.dataloader import DataConfig
from headway.dataloader.prepare import prepare

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
def steerable(fake: FakeRun, tmp_path: Path) -> FakeRun:
    """``fake`` with what the operations need: a corpus for a prompt, a checkpoint of step 7."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(30):
        (texts / f"{number}.txt").write_text(f"def function_{number}(x):\n    return x\n" * 20)
    data = DataConfig(
        path=str(tmp_path / "data"), source=str(texts), vocab_size=300, validation_fraction=0.3
    )
    prepare(data, say=lambda _: None)
    config = dataclasses.replace(
        fake.config,
        model=dataclasses.replace(SMALL.model, seq_len=128),
        data=dataclasses.replace(SMALL.data, path=data.path),
    )
    fake.config = config
    fake.folder.config.write_text(to_toml(config))
    CheckpointClient(fake.folder.checkpoints).save(7, {"w": np.full(8, 1)})
    return fake


@pytest.fixture
def shell(fake: FakeRun, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A command line about the runs that hold ``fake``."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--runs-dir", str(fake.folder.path.parent)])
        out, err = capsys.readouterr()
        return code, out, err

    return call
