"""Folders that cannot be imported are refused by name, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.common.errors import InputError
from headway.trainer.exchange.config_file import ConfigFile
from headway.trainer.exchange.exporting import export_model
from headway.trainer.exchange.families import FAMILIES, read_model
from headway.trainer.exchange.importing import import_model
from headway.trainer.exchange.source import open_model
from headway.trainer.exchange.tensor_file import TensorFile
from safetensors.torch import save_file

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 10,
}
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 10}
NEOX = {**LLAMA, "model_type": "gpt_neox"}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 8}
YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}


def folder_of(path: Path, config: dict[str, Any] = LLAMA) -> Path:
    """A folder that can be imported, with random weights."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    family, model = read_model(ConfigFile(config))
    rules = family.rules(model.architecture)
    tensors = {name: torch.randn(shape) for rule in rules for name, shape in rule.theirs.items()}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Its tensors."""
    file = TensorFile(folder / "model.safetensors")
    return {name: file.read(name) for name in file.entries}


def assert_refused(folder: Path, wanted: str) -> None:
    """The import is refused by ``wanted`` with a remedy, in one line, and leaves nothing."""
    target = folder.parent / "target"
    with pytest.raises(InputError, match=wanted) as caught:
        import_model(folder, target)
    assert caught.value.remedy and "\n" not in str(caught.value)
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]


@pytest.mark.parametrize(
    ("base", "changes", "wanted"),
    [
        (LLAMA, {"model_type": "mixtral"}, "model_type='mixtral', which is not supported"),
        (LLAMA, {"model_type": None}, "model_type='', which is not supported"),
        (LLAMA, {"model_type": 3}, "model_type=3: it is not text"),
        (LLAMA, {"hidden_size": None}, "has no hidden_size"),
        (LLAMA, {"hidden_size": "16"}, 'hidden_size="16": it is not a whole number'),
        (LLAMA, {"hidden_size": 0}, "hidden_size=0: it is below 1"),
        (LLAMA, {"hidden_size": True}, "hidden_size=true: it is not a whole number"),
        (LLAMA, {"num_attention_heads": 3, "head_dim": 5}, "model.head_dim=5 is not an even"),
        (LLAMA, {"num_key_value_heads": 3}, "not a multiple of model.kv_heads=3"),
        (LLAMA, {"hidden_act": "relu"}, 'hidden_act="relu": only silu is supported'),
        (LLAMA, {"attention_bias": True}, "biases in attention and MLP only go together"),
        (LLAMA, {"rope_scaling": YARN}, "only the types default and llama3 are supported"),
        (LLAMA, {"rope_parameters": YARN}, "only the types default and llama3 are supported"),
        (LLAMA, {"rope_scaling": LLAMA3}, "rope_scaling has no low_freq_factor"),
        (
            LLAMA,
            {"rope_scaling": {**LLAMA3, "low_freq_factor": 9.0}},
            "0 < low < high|use a factor",
        ),
        (LLAMA, {"rope_scaling": {"rope_type": "default", "mscale": 2}}, "mscale is not supported"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "only 1 is supported in this family"),
        (LLAMA, {"attn_logit_softcapping": 50.0}, "Headway has no capped attention scores"),
        (LLAMA, {"num_local_experts": 8}, "Headway has no mixture of experts"),
        (LLAMA, {"quantization_config": {"bits": 4}}, "Headway has no quantised weights"),
        (LLAMA, {"auto_map": {"AutoModel": "x"}}, "Headway has no code from"),
        (LLAMA, {"logits_scaling": 8.0}, "Headway has no scaled activations"),
        (QWEN3, {"attention_bias": True}, "attention_bias=true: only false is supported"),
        (
            QWEN3,
            {"use_sliding_window": True, "layer_types": ["full_attention", "chunked"]},
            "use 1 of full_attention, sliding_attention",
        ),
        (GPT2, {"activation_function": "relu"}, "use one of gelu, gelu_new"),
        (GPT2, {"scale_attn_weights": False}, "only true is supported"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scaled by the layer's number"),
        (GPT2, {"add_cross_attention": True}, "Headway has no cross-attention"),
        (NEOX, {"attention_bias": False}, "only true is supported"),
        (NEOX, {"rotary_pct": 0.3}, "is not an even number"),
    ],
)
def test_a_configuration_is_refused_by_its_key(
    base: dict[str, Any], changes: dict[str, Any], wanted: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "there", base)
    (folder / "config.json").write_text(json.dumps({**base, **changes}))
    assert_refused(folder, wanted)


def _without_a_tensor(folder: Path) -> None:
    tensors = tensors_of(folder)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def _with_a_tensor(folder: Path) -> None:
    extra = {"model.layers.0.mlp.experts.0.weight": torch.ones(1)}
    save_file(tensors_of(folder) | extra, folder / "model.safetensors")


def _other_shape(folder: Path) -> None:
    tensors = tensors_of(folder) | {"model.norm.weight": torch.ones(17)}
    save_file(tensors, folder / "model.safetensors")


def _other_type(folder: Path) -> None:
    tensors = tensors_of(folder) | {"model.norm.weight": torch.ones(16, dtype=torch.float64)}
    save_file(tensors, folder / "model.safetensors")


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _truncated(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-10])


def _empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def _huge_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)


def _no_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((9).to_bytes(8, "little") + b"[1, 2, 3]")


def _bad_offsets(folder: Path) -> None:
    table = {"model.norm.weight": {"dtype": "F32", "shape": [16], "data_offsets": [-4, 60]}}
    header = json.dumps(table).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(64)
    (folder / "model.safetensors").write_bytes(content)


def _wrong_size(folder: Path) -> None:
    table = {"model.norm.weight": {"dtype": "F32", "shape": [16], "data_offsets": [0, 60]}}
    header = json.dumps(table).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(64)
    (folder / "model.safetensors").write_bytes(content)


def _indexed(folder: Path, *names: str) -> None:
    table = {"weight_map": {f"tensor{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(table))


def _index_of_pickles(folder: Path) -> None:
    _indexed(folder, "pytorch_model.bin")


def _index_outside(folder: Path) -> None:
    _indexed(folder, "../model.safetensors")


def _index_of_a_missing_file(folder: Path) -> None:
    _indexed(folder, "model.safetensors", "model-2.safetensors")


def _index_twice(folder: Path) -> None:
    (folder / "two.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    _indexed(folder, "model.safetensors", "two.safetensors")


def _index_is_a_list(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("[]")


def _config_is_a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def _config_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (_without_a_tensor, "has no tensor model.layers.0.mlp.up_proj.weight"),
        (_with_a_tensor, "has a tensor model.layers.0.mlp.experts.0.weight that a llama does not"),
        (_other_shape, r"model.norm.weight has shape \[17\], config.json asks for \[16\]"),
        (_other_type, "model.norm.weight is F64"),
        (_pickled, "has no model.safetensors, only pytorch_model.bin"),
        (_no_weights, "has neither model.safetensors nor"),
        (_truncated, "is beyond its end"),
        (_empty, "its header would have 0 bytes of 0"),
        (_huge_header, "its header would have"),
        (_no_header, "its header cannot be read"),
        (_bad_offsets, "its header cannot be read"),
        (_wrong_size, r"has 60 bytes for \[16\]"),
        (_index_of_pickles, "names 'pytorch_model.bin'"),
        (_index_outside, r"names '\.\./model.safetensors'"),
        (_index_of_a_missing_file, "model-2.safetensors: No such file"),
        (_index_twice, "is in model.safetensors and in two.safetensors"),
        (_index_is_a_list, "is not an index of weights"),
        (_config_is_a_list, "is not a JSON object"),
        (_config_is_not_json, "is not JSON"),
        (_no_config, "cannot read .*config.json"),
    ],
)
def test_damaged_or_foreign_files_are_refused(
    damage: Callable[[Path], None], wanted: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "there")
    damage(folder)
    assert_refused(folder, wanted)


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_folder_that_is_damaged_above_can_be_imported(kind: str, tmp_path: Path) -> None:
    base = {"llama": LLAMA, "gpt2": GPT2, "gpt_neox": {**NEOX, "rotary_pct": 0.5}}.get(kind, LLAMA)
    folder = folder_of(tmp_path / "there", {**base, "model_type": kind, "head_dim": 8})
    done = import_model(folder, tmp_path / "target")
    assert done.family == kind
    made = open_model(tmp_path / "target")
    assert (made.kind, made.step) == ("imported", 0)
    assert all(bool(made.weights.read(name).isfinite().all()) for name in made.weights.shapes)


def test_a_missing_folder_and_a_full_target_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        import_model(tmp_path / "nothing", tmp_path / "target")
    folder = folder_of(tmp_path / "there")
    (tmp_path / "target").write_text("mine")
    with pytest.raises(InputError, match="exists and is not an empty folder"):
        import_model(folder, tmp_path / "target")
    assert (tmp_path / "target").read_text() == "mine"


def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a model"):
        open_model(tmp_path)
    folder = folder_of(tmp_path / "there")
    with pytest.raises(InputError, match="has no steps"):
        open_model(folder, step=3)
    with pytest.raises(InputError, match="is a Hugging Face folder already"):
        export_model(open_model(folder), tmp_path / "out")
