"""With documents every stage reads the stream of its replica: attention ends at their borders."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from headway.common.config import from_dict
from headway.testkit.data_daemon import Daemon, running_daemon, write_tokens
from headway.testkit.trainer.layouts import small_run
from headway.trainer.config import RunConfig
from headway.trainer.data.batches import BatchReader, MicroBatch
from headway.trainer.worker.node_resources import NodeResources, data_readers

END = 7


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="hw", dir="/tmp"))  # socket paths are limited
    with running_daemon(folder) as running:
        yield running
    shutil.rmtree(folder)


def _config(path: Path, parallel: dict[str, int], world: int, end: int | None) -> RunConfig:
    settings = small_run("fp32", parallel=dict(parallel), world_size=world)
    settings["model"]["document_end"] = end
    settings["data"] = {"path": str(path), "wait_timeout_s": 60.0}
    return from_dict(RunConfig, settings)


def _first_step(daemon: Daemon, config: RunConfig, rank: int) -> list[MicroBatch]:
    place: Any = SimpleNamespace(
        _config=config,
        _rank=rank,
        _context=SimpleNamespace(
            paths=SimpleNamespace(endpoint=lambda _: daemon.endpoint),
            fence=SimpleNamespace(is_fenced=lambda _: False),
        ),
    )
    grid, train = config.parallel.grid, config.train
    at = grid.coordinates(rank)
    reader = BatchReader(
        NodeResources.open_data(place, "train", 0, 0, ""),
        first=at.pp == 0,
        last=at.pp == grid.pp - 1,
        device=torch.device("cpu"),
        document_end=config.model.document_end,
    )
    size = train.micro_batch_size
    own = range(at.dp * size, train.global_batch_size, size * grid.dp)
    taken = reader.take(own, lambda: False)
    reader.close()
    return taken


def test_stages_between_first_and_last_read_the_borders_of_the_same_documents(
    tmp_path: Path, daemon: Daemon
) -> None:
    write_tokens(tmp_path / "corpus", [900] * 4, vocab_size=20)
    config = _config(tmp_path / "corpus", {"pp": 4, "dp": 2}, 8, END)
    with ThreadPoolExecutor(8) as pool:
        steps = list(pool.map(lambda rank: _first_step(daemon, config, rank), range(8)))
    grid = config.parallel.grid
    for rank, step in enumerate(steps):
        at = grid.coordinates(rank)
        first = steps[next(r for r in range(8) if grid.coordinates(r).dp == at.dp)]
        assert [batch.borders for batch in step] == [batch.borders for batch in first]
        assert any(len(row) > 2 for batch in step for row in batch.borders or ())
        assert (step[0].tokens is None) == (at.pp != 0)
        assert (step[0].labels is None) == (at.pp != grid.pp - 1)


def test_without_documents_only_the_first_and_last_stage_read(tmp_path: Path) -> None:
    config = _config(tmp_path, {"pp": 4, "dp": 2}, 8, None)
    places = [config.parallel.grid.coordinates(rank) for rank in data_readers(config, 0)]
    assert sorted(place.pp for place in places) == [0, 3]
    assert {place.dp for place in places} == {0}
