"""Weights leave a checkpoint of any layout whole, and enter any layout: the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headway.ckpt_store.client import (
    CheckpointInfo,
    CheckpointTensors,
    complete,
    read_part,
    write_tensors,
)
from headway.ckpt_store.files import Files
from headway.ckpt_store.flush import Snapshot, parse_layout, write_manifest, write_shard
from headway.ckpt_store.manifest import blob_name, step_dir_name
from headway.common.config import from_dict
from headway.common.errors import CorruptError, InputError
from headway.common.plan.grid import Grid
from headway.trainer.comm.interface import SingleRank
from headway.trainer.config import RunConfig
from headway.trainer.config.architecture import PRESETS
from headway.trainer.errors import RefusedError
from headway.trainer.exchange.checkpoint import check_first_weights
from headway.trainer.exchange.first_weights import load_first_weights
from headway.trainer.exchange.shapes import parameter_shapes
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.session.build import build_model
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.slot_layout import layout, offsets
from headway.trainer.state.train_state import TrainState
from hypothesis import given, settings
from hypothesis import strategies as st

SEED = 5
MODEL = {
    "layers": 4,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 96,
    "vocab_size": 100,
    "seq_len": 16,
}


class _Place(SingleRank):
    """One tensor-parallel rank; nothing is sent while memory is laid out."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size


def config_of(preset: str, grid: Grid, **train: Any) -> RunConfig:
    """A run of this model on this grid."""
    parallel = {"tp": grid.tp, "pp": grid.pp, "dp": grid.dp, "vp": grid.vp}
    schedule = "interleaved" if grid.vp > 1 and grid.pp > 1 else "1f1b"
    schedule = "zb-v" if grid.is_v else schedule
    return from_dict(
        RunConfig,
        {
            "model": {**MODEL, "preset": preset},
            "parallel": {**parallel, "schedule": schedule},
            "launch": {"nodes": 1, "ranks_per_node": grid.world_size},
            "train": {"global_batch_size": 12, "dtype": "fp32", **train},
        },
    )


def flats_of(config: RunConfig, rank: int) -> list[FlatChunk]:
    """The memory of one rank."""
    grid = config.parallel.grid
    place = grid.coordinates(rank)
    tp = TensorParallel(_Place(place.tp, grid.tp))
    return build_model(config, place, tp, torch.device("cpu"))[1]


def save(config: RunConfig, checkpoints: Path) -> CheckpointInfo:
    """A checkpoint of the first weights, as the ranks of the run would write it."""
    grid, files = config.parallel.grid, Files("test")
    for rank in range(grid.world_size):
        flats = flats_of(config, rank)
        starts, size = offsets(flats)
        data = np.zeros(size, np.uint8)
        for flat, start in zip(flats, starts, strict=True):
            flat.load_master_from_init(SEED)
            state = flat.state.numpy().view(np.uint8)
            data[start : start + state.nbytes] = state
        described = parse_layout(layout(flats, grid, rank))
        extra = TrainState(step=7, samples=0).pack()
        write_shard(files, checkpoints, Snapshot("0123abcd", 7, 1, described, data, extra))
    write_manifest(files, checkpoints / step_dir_name(7, 1))
    return complete(checkpoints)[0]


def grids() -> st.SearchStrategy[Grid]:
    """Layouts that fit the model."""
    split, tp = st.sampled_from((1, 2)), st.sampled_from((1, 2, 4))  # of 4: each head has 2 copies
    drawn = {"tp": tp, "pp": split, "dp": st.sampled_from((1, 2, 3)), "vp": split}
    made = st.builds(Grid, **drawn, is_v=st.booleans())
    return made.filter(
        lambda grid: (grid.pp, grid.vp) == (2, 2) or (grid.vp == 1 and not grid.is_v)
    )


FAMILIES = st.sampled_from(sorted(PRESETS))


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_names_and_shapes_are_those_of_the_trained_model(preset: str) -> None:
    config = config_of(preset, Grid())
    specs = [place.spec for flat in flats_of(config, 0) for place in flat.placed]
    found = {spec.name: spec.global_shape for spec in specs}
    assert found == parameter_shapes(config.model.architecture)


@given(preset=FAMILIES, written=grids(), read=grids())
@settings(max_examples=25)
def test_weights_of_any_layout_start_any_layout(
    tmp_path_factory: pytest.TempPathFactory, preset: str, written: Grid, read: Grid
) -> None:
    folder = tmp_path_factory.mktemp("run")
    save(config_of(preset, written), folder / "checkpoints")
    config = config_of(preset, read, init_from=str(folder))
    assert check_first_weights(config) is not None
    for rank in range(read.world_size):
        wanted, found = flats_of(config, rank), flats_of(config, rank)
        for flat in wanted:
            flat.load_master_from_init(SEED)
        for flat in found:
            flat.state.fill_(3.0)
        done: list[int] = []
        load_first_weights(found, folder, done.append)
        for one, other in zip(wanted, found, strict=True):
            assert torch.equal(one.state, other.state)
        assert sum(done) == sum(e["nbytes"] for flat in found for e in flat.layout_entries())


def test_a_checkpoint_of_whole_tensors_is_written_and_read_piece_by_piece(tmp_path: Path) -> None:
    shapes = {"a": (3, 5), "empty": (0, 4), "large": (9 << 20 >> 2,), "b": (7,)}
    drawn = np.random.default_rng(1)
    values = {n: drawn.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    asked: list[str] = []

    def read(name: str) -> Any:
        asked.append(name)
        return values[name]

    info = write_tensors(tmp_path, shapes, read, extra=b"x", run_id="0123abcd")
    assert asked == list(shapes)
    found = CheckpointTensors(info)
    assert dict(found.shapes) == shapes
    for name, value in values.items():
        assert np.array_equal(found.read(name), value)


def test_a_flipped_bit_is_noticed_before_it_is_used(tmp_path: Path) -> None:
    info = save(config_of("llama", Grid(tp=2)), tmp_path)
    place = read_part(info, 1).data_start + 4000
    with (info.path / blob_name(1)).open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    tensors = CheckpointTensors(info)
    with pytest.raises(CorruptError, match="does not match its digest"):
        for name in tensors.shapes:
            tensors.read(name)


def test_a_checkpoint_of_another_program_is_refused(tmp_path: Path) -> None:
    from headway.ckpt_store import CheckpointClient

    CheckpointClient(tmp_path).save(1, {"w": torch.ones(3)})
    with pytest.raises(InputError, match="does not hold master weights"):
        CheckpointTensors(complete(tmp_path)[0])


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"hidden": 128}, r"embedding.weight is \[128, 64\] in step-.*gives it \[128, 128\]"),
        ({"tied": True}, r"head.weight is \[128, 64\] in .*, \[model\] has none"),
        ({"qk_norm": True}, r"layers.0.attention.q_norm.weight is missing"),
    ],
)
def test_weights_of_another_model_are_refused_before_and_in_the_run(
    changes: dict[str, Any], wanted: str, tmp_path: Path
) -> None:
    save(config_of("llama", Grid()), tmp_path / "checkpoints")
    config = config_of("llama", Grid(), init_from=str(tmp_path))
    config = replace(config, model=replace(config.model, **changes))
    with pytest.raises(InputError, match=wanted):
        check_first_weights(config)
    if "tied" not in changes:
        with pytest.raises(RefusedError, match="the model needs"):
            load_first_weights(flats_of(config, 0), tmp_path)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    config = config_of("llama", Grid(), init_from=str(tmp_path))
    with pytest.raises(InputError, match="holds no complete checkpoint"):
        check_first_weights(config)
    with pytest.raises(RefusedError, match="holds no complete checkpoint"):
        load_first_weights(flats_of(config, 0), tmp_path)
    assert check_first_weights(config_of("llama", Grid())) is None
