"""The bytes on disk: names, part files, manifests, and blobs that the safetensors library opens."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from headway.ckpt_store import manifest
from headway.ckpt_store.files import Files
from headway.ckpt_store.flush import (
    Snapshot,
    StaleSnapshotError,
    blob_header,
    write_manifest,
    write_shard,
)
from headway.ckpt_store.folder import newest, open_checkpoint
from headway.ckpt_store.verify import read_shard, read_shard_into, verify
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.testkit import snapshots
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open


def save(
    root: Path, step: int, world_size: int = 1, generation: int = 0, num_floats: int = 3000
) -> Path:
    files = Files()
    for rank in range(world_size):
        write_shard(
            files, root, snapshots.small_snapshot(step, rank, world_size, generation, num_floats)
        )
    folder = root / manifest.step_dir_name(step, generation)
    write_manifest(files, folder)
    return folder


def test_a_blob_opens_with_the_safetensors_library_under_one_name_per_field(tmp_path: Path) -> None:
    folder = save(tmp_path, 7)
    snapshot = snapshots.small_snapshot(7)
    with safe_open(folder / "rank-0.safetensors", framework="numpy") as blob:
        assert blob.metadata()["step"] == "7"
        names = [name for name in blob.keys() if not name.startswith("__pad__")]  # noqa: SIM118
        assert sorted(names) == [
            "blocks.0.attn.qkv.weight|exp_avg",
            "blocks.0.attn.qkv.weight|master",
            "head.weight|param",
        ]
        stored = blob.get_tensor("blocks.0.attn.qkv.weight|exp_avg")
    start = snapshot.layout["tensors"][1]["offset"]
    assert stored.tobytes() == snapshot.data[start : start + 12000].tobytes()


def test_the_data_of_a_blob_starts_at_a_page(tmp_path: Path) -> None:
    raw = (save(tmp_path, 7) / "rank-0.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    assert start % 4096 == 0
    assert raw[start:] == snapshots.small_snapshot(7).data.tobytes()


def test_a_tensor_parallel_shard_keeps_its_local_shape_and_a_flat_piece_is_flat() -> None:
    tensor = {"name": "w", "field": "master", "dtype": "float32", "offset": 0, "nbytes": 4 * 6 * 4,
              "global_shape": [12, 4], "tp_dim": 0, "tp_size": 2}  # fmt: skip
    piece = {**tensor, "field": "exp_avg", "offset": 96, "nbytes": 4 * 5}
    layout = {"tensors": [tensor, piece], "mesh": {"rank": 0}}
    header = bytes(blob_header(Snapshot(snapshots.RUN_ID, 0, 0, layout, np.zeros(116, np.uint8))))
    entries = json.loads(header[8:])
    assert entries["w|master"]["shape"] == [6, 4]
    assert entries["w|exp_avg"]["shape"] == [5]


def test_two_pieces_of_one_name_both_appear_in_the_header() -> None:
    piece = {"name": "w", "field": "master", "dtype": "uint8", "offset": 0, "nbytes": 8}
    layout = {"tensors": [piece, {**piece, "offset": 8}], "mesh": {"rank": 0}}
    entries = json.loads(
        bytes(blob_header(Snapshot(snapshots.RUN_ID, 0, 0, layout, np.zeros(16, np.uint8))))[8:]
    )
    assert {"w|master", "w|master#2"} < set(entries)


@pytest.mark.parametrize(
    "change",
    [{"offset": 4}, {"nbytes": 999}, {"dtype": "complex128"}, {"dtype": "float64", "nbytes": 4}],
)
def test_an_impossible_layout_is_refused_by_name(change: dict[str, object]) -> None:
    first = {"name": "first", "field": "", "dtype": "float32", "offset": 0, "nbytes": 8}
    layout = {
        "tensors": [first, {**first, "name": "second", "offset": 8, **change}],
        "mesh": {"rank": 0},
    }
    with pytest.raises(InputError, match="second"):
        blob_header(Snapshot(snapshots.RUN_ID, 0, 0, layout, np.zeros(16, np.uint8)))


def test_all_files_of_a_step_have_deterministic_bytes(tmp_path: Path) -> None:
    one, two = save(tmp_path / "a", 3, world_size=2), save(tmp_path / "b", 3, world_size=2)
    names = sorted(path.name for path in one.iterdir())
    assert names == ["MANIFEST.json"] + [
        f"rank-{r}.{e}" for r in (0, 1) for e in ("json", "safetensors")
    ]
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_saving_twice_changes_no_file(tmp_path: Path) -> None:
    folder = save(tmp_path, 3)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    save(tmp_path, 3)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_complete_step_is_never_overwritten_by_another_content(tmp_path: Path) -> None:
    save(tmp_path, 3)
    other = snapshots.small_snapshot(3)
    other.data[5] ^= 1
    with pytest.raises(HeadwayError, match="is complete"):
        write_shard(Files(), tmp_path, other)
    assert verify(open_checkpoint(tmp_path, 3, 0)) == []


def test_an_incomplete_step_may_be_overwritten(tmp_path: Path) -> None:
    write_shard(Files(), tmp_path, snapshots.small_snapshot(3, 0, 2))
    other = snapshots.small_snapshot(3, 0, 2)
    other.data[5] ^= 1
    write_shard(Files(), tmp_path, other)
    write_shard(Files(), tmp_path, snapshots.small_snapshot(3, 1, 2))
    write_manifest(Files(), tmp_path / manifest.step_dir_name(3, 0))
    data, _ = read_shard(open_checkpoint(tmp_path, 3, 0), 0)
    assert data.tobytes() == other.data.tobytes()


def test_a_snapshot_that_changed_under_the_flush_leaves_nothing(tmp_path: Path) -> None:
    sound = snapshots.small_snapshot(3)
    torn = Snapshot(sound.run_id, 3, 0, sound.layout, sound.data, still_valid=lambda: False)
    with pytest.raises(StaleSnapshotError):
        write_shard(Files(), tmp_path, torn)
    assert list((tmp_path / manifest.step_dir_name(3, 0)).iterdir()) == []


def test_a_manifest_needs_every_part_and_the_whole_of_every_blob(tmp_path: Path) -> None:
    write_shard(Files(), tmp_path, snapshots.small_snapshot(3, 0, 2))
    folder = tmp_path / manifest.step_dir_name(3, 0)
    with pytest.raises(CorruptError, match=r"rank-1\.json is missing"):
        write_manifest(Files(), folder)
    write_shard(Files(), tmp_path, snapshots.small_snapshot(3, 1, 2))
    blob = folder / "rank-1.safetensors"
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(CorruptError, match=r"rank-1\.safetensors"):
        write_manifest(Files(), folder)
    assert newest(tmp_path) is None


def test_parts_of_two_runs_make_no_manifest(tmp_path: Path) -> None:
    write_shard(Files(), tmp_path, snapshots.small_snapshot(3, 0, 2))
    other = snapshots.small_snapshot(3, 1, 2)
    write_shard(Files(), tmp_path, Snapshot("ffffffff", 3, 0, other.layout, other.data))
    with pytest.raises(CorruptError, match="do not belong together"):
        write_manifest(Files(), tmp_path / manifest.step_dir_name(3, 0))


def test_a_shard_of_several_chunks_comes_back_bit_exact_into_given_memory(tmp_path: Path) -> None:
    # two tensors: more than two chunks, with an odd tail
    num_floats = manifest.CHUNK_BYTES // 4 + 1111
    save(tmp_path, 5, num_floats=num_floats)
    expected = snapshots.small_snapshot(5, num_floats=num_floats)
    buffer = np.zeros(expected.data.nbytes + 100, np.uint8)
    info = open_checkpoint(tmp_path, 5, 0)
    assert read_shard_into(info, 0, memoryview(buffer)) == b"extra 5"
    assert buffer[:-100].tobytes() == expected.data.tobytes()
    assert not buffer[-100:].any()


def test_too_small_a_buffer_and_a_wrong_rank_are_bad_input(tmp_path: Path) -> None:
    save(tmp_path, 5)
    info = open_checkpoint(tmp_path, 5, 0)
    with pytest.raises(InputError, match="cannot hold"):
        read_shard_into(info, 0, np.zeros(10, np.uint8))
    with pytest.raises(InputError, match="no rank 1"):
        read_shard(info, 1)


@given(step=st.integers(0, 10**9), generation=st.integers(0, 10**6))
def test_step_folder_names_come_back(step: int, generation: int) -> None:
    assert manifest.parse_step_dir(manifest.step_dir_name(step, generation)) == (step, generation)


@given(
    step=st.integers(0, 2**40),
    generation=st.integers(0, 2**31),
    extra=st.binary(max_size=200),
    data_bytes=st.integers(0, 3 * manifest.CHUNK_BYTES),
    tp=st.integers(1, 4),
    dp=st.integers(1, 4),
)
def test_a_part_file_comes_back(
    step: int, generation: int, extra: bytes, data_bytes: int, tp: int, dp: int
) -> None:
    part = manifest.Part(
        run_id=snapshots.RUN_ID,
        step=step,
        generation=generation,
        mesh=manifest.Mesh(rank=tp * dp - 1, tp=tp, dp=dp),
        file_bytes=4096 + data_bytes,
        data_start=4096,
        header_digest="0" * 16,
        chunks=("a" * 16,) * manifest.num_chunks(data_bytes),
        layout={"tensors": []},
        extra=extra,
    )
    assert manifest.decode_part(manifest.encode_part(part), "x") == part


@given(raw=st.binary(max_size=100) | st.text(max_size=100).map(str.encode))
def test_garbage_is_corrupt_and_nothing_else(raw: bytes) -> None:
    for decode in (manifest.decode_part, manifest.decode_manifest, manifest.decode_mark):
        with pytest.raises(CorruptError, match="the-file"):
            decode(raw, "the-file")


@given(data=st.data())
def test_a_damaged_part_file_is_corrupt_or_still_reads(data: st.DataObject) -> None:
    part = manifest.Part(
        snapshots.RUN_ID, 1, 0, manifest.Mesh(0), 4097, 4096, "0" * 16, ("1" * 16,), {}, b"abc"
    )
    raw = bytearray(manifest.encode_part(part))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptError):
        manifest.decode_part(bytes(raw), "x")


def test_another_schema_is_refused_with_what_to_do() -> None:
    raw = manifest.mark_bytes(1, 5).replace(b'"schema":1', b'"schema":9')
    with pytest.raises(CorruptError, match="schema 9, this version reads 1"):
        manifest.decode_mark(raw, "x")
