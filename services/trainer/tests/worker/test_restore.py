"""A rank restores the same tensors from the same places, or says which of them lies elsewhere."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from headway.ckpt_store.files import Files
from headway.ckpt_store.flush import Snapshot, write_manifest, write_shard
from headway.common.node.arena import Arena
from headway.common.wire.messages.worker import Assign, Restore
from headway.testkit.trainer.sessions import RUN_ID, arena_at, arena_of, one_rank, train_on
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.errors import BadCheckpointError, BadSnapshotError, RefusedError
from headway.trainer.session.session import Session
from headway.trainer.state.train_state import TrainState
from headway.trainer.worker import rank as rank_module
from headway.trainer.worker.rank import Rank

pytestmark = pytest.mark.usefixtures("one_thread")

# Written down here, so that a key which the check forgets is missed.
MESH_KEYS = ("tp", "pp", "dp", "vp", "rank")
TENSOR_KEYS = (
    "name",
    "field",
    "dtype",
    "offset",
    "nbytes",
    "global_shape",
    "tp_dim",
    "tp_rank",
    "tp_size",
    "flat_start",
    "flat_stop",
)


def _exchanged(layout: bytes) -> dict[str, Any]:
    """The same layout with two tensors of equal size in each other's place."""
    found: dict[str, Any] = json.loads(layout)
    tensors = found["tensors"]
    one, other = (
        tensor
        for tensor in tensors
        if tensor["name"] in ("layers.0.mlp.down.weight", "layers.1.mlp.down.weight")
        and tensor["field"] == "master"
    )
    assert one["nbytes"] == other["nbytes"]
    one["name"], other["name"] = other["name"], one["name"]
    return found


def test_an_arena_with_parameters_in_another_order_is_no_source_by_the_first_of_them(
    tmp_path: Path,
) -> None:
    train_on(
        Session(
            one_rank(),
            0,
            data_factory=synthetic(one_rank(), 0),
            open_arena=arena_at(tmp_path / "a"),
        ),
        2,
    )
    with Arena.open(tmp_path / "a", writable=False) as arena:
        size, layout = arena.slot_bytes, arena.layout
    Arena.create(
        tmp_path / "b",
        run_id=RUN_ID,
        rank=0,
        slot_bytes=size,
        layout=json.dumps(_exchanged(layout)).encode(),
    ).close()
    session = Session(
        one_rank(), 0, data_factory=synthetic(one_rank(), 0), open_arena=arena_at(tmp_path / "b")
    )
    session.join(Groups.alone())
    wanted = r"layers.1.mlp.down.weight\|master there, layers.0.mlp.down.weight\|master here"
    with pytest.raises(BadSnapshotError, match=wanted):
        session.load("arena", 2)


def _save(rank: Rank, change: Callable[[bytes], Any] = json.loads) -> Assign:
    """A complete checkpoint of step 3 with the rank's layout, changed; the order to restore it."""
    session, folder = rank._session, rank._context.run_dir.checkpoints
    data = np.zeros(arena_of(session).slot_bytes, np.uint8)
    files = Files("test")
    extra = TrainState(step=3, samples=48).pack()
    write_shard(files, folder, Snapshot(RUN_ID, 3, 0, change(session._layout()), data, extra))
    info_path = folder / "step-00000003.g0"
    write_manifest(files, info_path)
    restore = Restore(source="durable", step=3, folder=str(info_path))
    return Assign(generation=1, rank=0, restore=restore)


def test_a_checkpoint_is_taken_by_a_model_that_keeps_every_tensor_where_it_lies(rank: Rank) -> None:
    def with_news(layout: bytes) -> Any:
        found = json.loads(layout)
        for tensor in found["tensors"]:
            tensor["checked_by"] = "a later version"
        return {**found, "index": []}

    rank._restore(_save(rank, with_news))
    assert (rank._session.step, rank._session.samples) == (3, 48)


@pytest.mark.parametrize("change", ["order", "mesh", "dtype"])
def test_a_checkpoint_with_another_layout_is_refused_and_an_older_one_is_not_tried(
    rank: Rank, change: str
) -> None:
    def changed(layout: bytes) -> Any:
        if change == "order":
            return _exchanged(layout)
        found = json.loads(layout)
        if change == "mesh":
            found["mesh"]["vp"] = 2
        else:
            found["tensors"][5]["dtype"] = "float64"
        return found

    told = {
        "order": "layers.1.mlp.down.weight|master there, layers.0.mlp.down.weight|master here",
        "mesh": "its mesh has vp=2, this rank vp=1",
        "dtype": "has dtype='float64' there, 'float32' here",
    }
    with pytest.raises(RefusedError) as refused:
        rank._restore(_save(rank, changed))
    assert told[change] in str(refused.value)
    assert "step-00000003.g0" in str(refused.value) and "--name" in str(refused.value)
    assert not isinstance(refused.value, BadCheckpointError)


def _other(value: Any) -> Any:
    """A value of the same kind that is not ``value``."""
    match value:
        case str():
            return f"{value}x"
        case list():
            return [*value, 1]
        case None:
            return 0
        case _:
            return value + 1


@pytest.mark.parametrize("key", TENSOR_KEYS)
def test_a_layout_is_refused_if_one_tensor_differs_in_any_key(rank: Rank, key: str) -> None:
    found = json.loads(rank._session._layout())
    assert set(found["tensors"][5]) == set(TENSOR_KEYS)
    rank._session.check_layout(found, "the arena")
    found["tensors"][5][key] = _other(found["tensors"][5][key])
    wanted = "tensor 5 is" if key in ("name", "field") else f"has {key}="
    with pytest.raises(RefusedError, match=wanted):
        rank._session.check_layout(found, "the arena")


@pytest.mark.parametrize("key", MESH_KEYS)
def test_a_layout_is_refused_if_its_mesh_differs_in_any_key(rank: Rank, key: str) -> None:
    found = json.loads(rank._session._layout())
    assert set(found["mesh"]) == set(MESH_KEYS)
    found["mesh"][key] += 1
    with pytest.raises(RefusedError, match=f"its mesh has {key}="):
        rank._session.check_layout(found, "the arena")


@pytest.mark.parametrize("damage", ["blob", "part", "gone"])
def test_a_damaged_checkpoint_is_called_bad_so_that_an_older_one_is_tried(
    rank: Rank, damage: str
) -> None:
    assign = _save(rank)
    folder = Path(assign.restore.folder)
    if damage == "gone":
        shutil.rmtree(folder)
    else:
        name = "rank-0.safetensors" if damage == "blob" else "rank-0.json"
        with (folder / name).open("r+b") as file:
            file.seek(-20, 2)
            file.write(b"\x55\xaa\x55")
    with pytest.raises(BadCheckpointError) as bad:
        rank._restore(assign)
    sentence = f"rank 0 on node 0 cannot read its part of checkpoint 3: .*{folder}"
    assert re.match(sentence, bad.value.message)


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_part_in_doubt_is_read_by_the_second_reader_alone(rank: Rank, is_damaged: bool) -> None:
    assign = _save(rank)
    if is_damaged:
        (Path(assign.restore.folder) / "rank-0.safetensors").unlink()
    for reader in (-1, 1, 0):
        restore = msgspec.structs.replace(assign.restore, doubted=0, reader=reader)  # type: ignore[type-var]
        if is_damaged and reader == rank.rank:
            with pytest.raises(BadCheckpointError, match="it is missing") as bad:
                rank._read_doubted(restore)
            assert bad.value.part == 0
        else:
            rank._read_doubted(restore)


def test_a_rank_without_descriptors_condemns_no_checkpoint(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    assign = _save(rank)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(rank_module, "read_shard", full)
    with pytest.raises(OSError, match="Too many open files"):
        rank._restore(assign)


def test_trouble_with_the_arena_does_not_keep_a_rank_from_its_checkpoint(rank: Rank) -> None:
    assign = _save(rank)
    path = rank._context.paths.segment("arena", 0)
    rank._session._snapshots = None
    path.write_bytes(b"\0" * path.stat().st_size)
    rank._restore(assign)
    assert rank._session.step == 3
    with Arena.open(path, writable=False) as arena:
        assert arena.sealed() == []
