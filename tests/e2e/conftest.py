"""Machines that tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.testkit.machines import Machines

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def machines(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path
) -> Iterator[Machines]:
    if reason := Machines.missing():
        pytest.skip(f"no separate nodes here: {reason}")
    folder = tmp_path_factory.mktemp("machines")
    with Machines(folder, count=3, visible=[corpus, cache, EXAMPLES]) as found:
        found.env["HEADWAY_CACHE"] = str(cache)
        yield found
