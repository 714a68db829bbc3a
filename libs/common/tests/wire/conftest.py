"""Short folders for sockets, whose paths are limited, and no thread left after any test."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import wait_until


@pytest.fixture
def sock_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hw-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    # connections of the metrics exporter end with their request limit
    wait_until(
        lambda: not set(threading.enumerate()) - before, what="end of the threads a test began"
    )
