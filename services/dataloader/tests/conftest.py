"""One small corpus for all tests, and a short folder for sockets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.dataloader.config import DataConfig
from headway.dataloader.prepare import prepare
from headway.testkit.data_daemon import Daemon, running_daemon

from services.dataloader.tests.bad_disk import BadDisk, daemon_on_a_bad_disk

WORDS = [
    "the",
    "ring",
    "holds",
    "a",
    "batch",
    "of",
    "tokens",
    "while",
    "one",
    "daemon",
    "reads",
    "each",
    "byte",
    "once",
    "for",
    "every",
    "rank",
    "on",
    "its",
    "node",
]


def document(number: int, num_words: int) -> str:
    """Text that differs between documents."""
    return " ".join(
        WORDS[(number * 7 + k * (number + 3)) % len(WORDS)] + str(k % 5) for k in range(num_words)
    )


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 documents in nested folders; one is empty, one is no text."""
    root = tmp_path_factory.mktemp("text")
    for number in range(60):
        path = root / f"part{number % 4}" / f"{number:02}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(document(number, 20 + number * 5))
    (root / "empty.txt").write_text("")
    (root / "picture.png").write_bytes(b"\x89PNG\x00")
    return root


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory, text_folder: Path) -> Path:
    """The prepared folder of ``text_folder``."""
    folder = tmp_path_factory.mktemp("data") / "corpus"
    config = DataConfig(
        path=str(folder), source=str(text_folder), vocab_size=300, validation_fraction=0.2
    )
    return prepare(config).path


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Socket paths are limited to 100 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="hw", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def bad_disk(short_folder: Path) -> Iterator[BadDisk]:
    with daemon_on_a_bad_disk(short_folder) as running:
        yield running


@pytest.fixture
def ring_folder() -> Iterator[Path]:
    """For rings of a ``Prefetcher`` of this process."""
    with tempfile.TemporaryDirectory(prefix="headway-data-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def daemon(short_folder: Path) -> Iterator[Daemon]:
    with running_daemon(short_folder) as running:
        yield running
