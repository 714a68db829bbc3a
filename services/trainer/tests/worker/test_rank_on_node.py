"""A rank takes over its predecessor's arena, and opens its stream with the run's settings."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from headway.common.config import from_dict
from headway.common.errors import HeadwayError
from headway.common.node.arena import Arena
from headway.common.node.flight import FlightReader
from headway.common.node.testing import wait_until
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.messages.worker import Restore
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.sessions import one_rank
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.fence import Fence
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted
from headway.trainer.config import RunConfig
from headway.trainer.worker import node_resources
from headway.trainer.worker import rank as rank_module
from headway.trainer.worker.node_resources import NodeResources
from headway.trainer.worker.rank import Rank

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
    monkeypatch.setattr(node_resources, "CLAIM_LIMIT_S", 0.05)
    with pytest.raises(HeadwayError, match=f"is being written by process {predecessor.pid}"):
        _open(rank)


def test_a_stream_is_opened_with_the_wait_and_the_fence_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, Any] = {}
    monkeypatch.setattr(node_resources, "DataClient", lambda _, **options: opened.update(options))
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


@pytest.mark.parametrize("source", ["init", "durable"])
def test_an_abort_ends_a_restore_after_the_piece_at_hand(
    source: str, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a load that looks at the fence only before and after: with a large model the worker
    would be killed for not leaving in time."""
    context: Any = rank._context
    context.fence.enter(0, Channels())
    nbytes = sum(flat.state.nbytes for flat in rank._session.flats)
    restored, aborting = rank._restored, []

    def abort_after_the_first(piece: int) -> None:
        restored(piece)
        if piece and not aborting:
            aborting.append(threading.Thread(target=context.fence.abort, args=(0,), daemon=True))
            aborting[0].start()
            wait_until(lambda: context.fence.is_fenced(0))

    def read_in_pieces(*_: Any, progress: Any) -> None:
        for _ in range(100):
            progress(nbytes // 100)

    monkeypatch.setattr(rank, "_restored", abort_after_the_first)
    monkeypatch.setattr(rank_module, "newest", lambda *_, **__: SimpleNamespace(path="folder"))
    monkeypatch.setattr(rank_module, "read_part", lambda *_: SimpleNamespace(layout=b""))
    monkeypatch.setattr(rank._session, "check_layout", lambda *_: None)
    monkeypatch.setattr(rank_module, "read_shard", read_in_pieces)
    restore = Restore(source=source, step=0, folder="folder")
    assign: Any = SimpleNamespace(restore=restore, generation=0)
    with pytest.raises(Aborted):
        rank._restore(assign)
    context.fence.leave(broken=False)
    assert 0 < context.view.restored_bytes < nbytes // 2
    aborting[0].join(20)


def test_bytes_of_first_weights_add_up_to_the_state_and_show_in_the_flight_ring(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver waits for a rank while its bytes grow, the monitor while its records do."""
    monkeypatch.setattr(rank_module, "SHOW_RESTORED_S", -1.0)
    context: Any = rank._context
    assign: Any = SimpleNamespace(restore=Restore(source="init", step=0), generation=0)
    rank._restore(assign)
    flats = rank._session.flats
    used = sum(place.spec.numel for flat in flats for place in flat.placed)
    assert context.view.restored_bytes == 3 * used * flats[0].master.element_size()
    reader = FlightReader(context.paths.segment("flight", 0))
    shown = [int(r["nbytes"]) for r in reader.snapshot() if r["kind"] == Kind.RESTORE]
    reader.close()
    assert shown[-1] == context.view.restored_bytes
    assert len(shown) > 3


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


def test_the_ring_shows_the_generation_that_a_rank_joins_while_it_does(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that cannot be built are a fault of the generation that begins, not of the last."""
    seen: list[Any] = []

    def build(*_: object, **__: object) -> None:
        reader = FlightReader(rank._context.paths.segment("flight", 0))
        last = reader.last()
        assert last is not None
        seen.append((reader.header.generation, last.kind, last.end_ns))
        raise Aborted

    monkeypatch.setattr(rank_module, "build", build)
    with pytest.raises(Aborted):
        rank._join(7, Channels(), lambda _: pytest.fail("nobody is looked up"))
    assert seen == [(7, Kind.JOIN, 0)]
