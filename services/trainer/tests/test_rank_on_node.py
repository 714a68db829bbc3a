"""A rank takes over its predecessor's arena, and opens its stream with the run's settings."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from headway.common.config import from_dict
from headway.common.errors import HeadwayError
from headway.common.node.arena import Arena
from headway.common.node.testing import wait_until
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.sessions import one_rank
from headway.trainer import rank as rank_module
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.fence import Fence
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted
from headway.trainer.config import RunConfig
from headway.trainer.rank import NodeResources, Rank

PREDECESSOR = """
import sys
from pathlib import Path
from headway.common.node.arena import Arena
arena = Arena.create(
    Path(sys.argv[1]), run_id=sys.argv[2], rank=0, slot_bytes=4096, layout=b"{}"
)
print("holds it", flush=True)
sys.stdin.read()
"""


class Predecessor:
    """A process that has made the rank's arena and writes it until it is killed."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PREDECESSOR, str(path), run_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "holds it\n"
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def predecessor(rank: Rank) -> Iterator[Predecessor]:
    context = rank._context
    process = Predecessor(context.paths.segment("arena", 0), context.run_dir.run_id)
    yield process
    process.kill()


def _open(rank: Rank) -> Arena:
    return rank._node.open_arena(4096, b"{}")


def test_an_arena_is_claimed_as_soon_as_its_predecessor_has_ended(
    rank: Rank, predecessor: Predecessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a claim that comes with the first snapshot only, and one that is tried once."""
    asked: list[int] = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 3:
            predecessor.kill()

    monkeypatch.setattr(rank._context.fence, "check", check)
    arena = _open(rank)
    assert arena.writer.pid == os.getpid()
    assert (len(asked), arena.replaced) == (3, "")


def test_an_abort_ends_the_wait_for_a_predecessor(rank: Rank, predecessor: Predecessor) -> None:
    fence = rank._context.fence
    fence.enter(1, Channels())
    fence._fenced = 1
    with pytest.raises(Aborted):
        _open(rank)
    fence.leave(broken=False)
    with Arena.open(rank._context.paths.segment("arena", 0), writable=False) as arena:
        assert arena.writer.pid == predecessor.pid


def test_a_predecessor_that_does_not_end_is_named(
    rank: Rank, predecessor: Predecessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_module, "CLAIM_LIMIT_S", 0.05)
    with pytest.raises(HeadwayError, match=f"is being written by process {predecessor.pid}"):
        _open(rank)


def test_a_stream_is_opened_with_the_wait_and_the_fence_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, Any] = {}
    monkeypatch.setattr(rank_module, "DataClient", lambda _, **options: opened.update(options))
    settings = small_run("fp32", world_size=1)
    settings["data"] = {"path": str(tmp_path), "wait_timeout_s": 7.5}
    fence = Fence()
    rank: Any = SimpleNamespace(
        _config=from_dict(RunConfig, settings),
        _rank=0,
        _context=SimpleNamespace(
            paths=SimpleNamespace(endpoint=lambda _: "ipc://nobody"), fence=fence
        ),
    )
    NodeResources.open_data(rank, "train", 0, 3, "")
    assert opened["timeout_s"] == 7.5
    assert not opened["abort"]()
    fence._fenced = 3
    assert opened["abort"]()


def test_a_worker_that_takes_another_rank_frees_the_old_model_without_a_collection(
    rank: Rank, tmp_path: Path
) -> None:
    """Catches a rank and a session that hold each other: two models at once on a GPU."""
    new_context: Any = type(rank._context)
    gc.collect()
    gc.disable()
    try:
        other = Rank(new_context(tmp_path / "second", one_rank()), 0)
        other._session.join(Groups.alone())
        other._session.load("init")
        other._session.leave()
        seen = [weakref.ref(other._session), *map(weakref.ref, other._session.flats)]
        seen += map(weakref.ref, other._session.chunks)
        other.close()
        del other
        wait_until(lambda: not any(reference() for reference in seen), what="the model is gone")
    finally:
        gc.enable()
