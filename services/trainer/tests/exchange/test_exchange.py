"""From Hugging Face and back: the same bits, for every family; rules are exact inverses."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from headway.common.errors import InputError
from headway.testkit.trainer.huggingface import HAS_TRANSFORMERS, VARIANTS, WHY_NOT, save_tiny
from headway.trainer.config.architecture import Architecture, RopeScaling
from headway.trainer.config.model import ModelConfig
from headway.trainer.exchange.config_file import ConfigFile
from headway.trainer.exchange.exporting import export_model
from headway.trainer.exchange.families import FAMILIES, family_for, read_model
from headway.trainer.exchange.family import Family
from headway.trainer.exchange.folder import HuggingFaceFolder
from headway.trainer.exchange.importing import import_model
from headway.trainer.exchange.rules import Rule, interleave, separate
from headway.trainer.exchange.shapes import parameter_shapes
from headway.trainer.exchange.source import open_model
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

needs_transformers = pytest.mark.skipif(not HAS_TRANSFORMERS, reason=WHY_NOT)
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a folder, read by the format's own package."""
    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


@needs_transformers
@each_variant
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_there_and_back_gives_the_same_bits(variant: str, dtype: str, tmp_path: Path) -> None:
    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    save_tiny(variant, tmp_path / "there", kind)
    done = import_model(tmp_path / "there", tmp_path / "here")
    made = open_model(tmp_path / "here")
    assert made.weights.shapes == parameter_shapes(made.model.architecture)
    assert done.tensors == len(made.weights.shapes)
    out = export_model(made, tmp_path / "back", dtype=dtype, file_bytes=20_000)
    assert out.files > 1
    before, after = tensors_in(tmp_path / "there"), tensors_in(tmp_path / "back")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == kind and torch.equal(after[name], tensor), name
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == before.keys()
    nbytes = sum(tensor.nbytes for tensor in before.values())
    assert index["metadata"]["total_size"] == nbytes


@needs_transformers
@each_variant
def test_a_configuration_read_and_written_describes_the_same_model(
    variant: str, tmp_path: Path
) -> None:
    save_tiny(variant, tmp_path / "there")
    family, model = read_model(ConfigFile.read(tmp_path / "there"))
    keys = {"model_type": family.model_type, **family.keys(model.architecture)}
    again, second = read_model(ConfigFile(keys))
    assert (again, second.architecture) == (family, model.architecture)
    assert family_for(model) is family


def _model(kind: str, **changes: Any) -> ModelConfig:
    sizes = {"hidden": 64, "heads": 4, "layers": 2, "vocab_size": 70, "seq_len": 32, "ffn": 64}
    return ModelConfig(**{"preset": kind, **sizes, **changes})


@pytest.mark.parametrize(
    ("model", "family"),
    [
        (_model("headway"), "gpt_neox"),
        (_model("headway", block="parallel"), "gpt_neox"),
        (_model("headway", kv_heads=2), ""),
        (_model("headway", norm="rmsnorm"), ""),
        (_model("gpt2"), "gpt2"),
        (_model("gpt2", bias="none", tied=False), "gpt2"),
        (_model("gpt2", bias="qkv"), "gpt2"),
        (_model("llama", kv_heads=1), "llama"),
        (_model("llama", window=8), "mistral"),
        (_model("llama", window=8, window_layers=(1,)), "qwen2"),
        (_model("llama", bias="qkv"), "qwen2"),
        (_model("llama", rope_fraction=0.5), ""),
        (_model("mistral"), "mistral"),
        (_model("mistral", bias="all"), "llama"),
        (_model("qwen3", window=8, window_layers=(0,)), "qwen3"),
        (_model("qwen3", qk_norm=False), "llama"),
        (_model("neox", norms=1), "gpt_neox"),
        (_model("neox", block="serial", bias="none"), "gpt_neox"),
    ],
    ids=str,
)
def test_a_model_is_exported_as_a_family_that_can_express_it(
    model: ModelConfig, family: str
) -> None:
    if not family:
        with pytest.raises(InputError, match="no Hugging Face family can express this model"):
            family_for(model)
        return
    found = family_for(model)
    assert found.model_type == family
    rules = [rule for rule in found.rules(model.architecture) if rule.name]
    assert {rule.name: rule.shape for rule in rules} == parameter_shapes(model.architecture)


@st.composite
def models(draw: st.DrawFn) -> tuple[Family, Architecture]:
    """A family and a model that it can express."""
    family = draw(st.sampled_from(list(FAMILIES.values())))
    kv, each, head = (draw(st.integers(1, 3)) for _ in range(3))
    plain = family.is_plain
    heads, width = kv * (1 if plain else each), 4 * head
    keys: dict[str, Any] = {name: draw(st.sampled_from(v)) for name, v in family.needs.items()}
    keys.setdefault("bias", draw(st.sampled_from(["none", "qkv", "all"])))
    keys["tied"] = draw(st.booleans())
    one_norm = keys["block"] == "parallel" and keys["bias"] != "qkv"
    keys["norms"] = draw(st.sampled_from([1, 2])) if one_norm else 2
    if family.model_type == "gpt_neox":
        keys["rope_fraction"] = draw(st.sampled_from([0.5, 1.0]))
    if draw(st.booleans()) and keys["positions"] == "rotary":
        keys["rope_scaling"] = RopeScaling(factor=4.0, original_len=8)
    model = ModelConfig(
        hidden=heads * width if plain else 24,
        heads=heads,
        kv_heads=kv,
        head_dim=width,
        ffn=draw(st.integers(1, 40)),
        layers=draw(st.integers(1, 2)),
        vocab_size=draw(st.integers(1, 130)),
        seq_len=draw(st.integers(8, 20)),
        **keys,
    )
    return family, model.architecture


@given(models())
@settings(max_examples=60)
def test_every_rule_moves_each_element_once_and_has_an_exact_inverse(
    drawn: tuple[Family, Architecture],
) -> None:
    family, model = drawn
    rules = family.rules(model)
    names = [name for rule in rules for name in rule.theirs]
    assert len(names) == len(set(names))
    assert {r.name: r.shape for r in rules if r.name} == parameter_shapes(model)
    for rule in rules:
        if rule.name:
            _check_inverse(rule, model)


def _check_inverse(rule: Rule, model: Architecture) -> None:
    ours = torch.arange(1, math.prod(rule.shape) + 1, dtype=torch.float64).view(rule.shape)
    if rule.name in ("embedding.weight", "head.weight"):
        ours[model.vocab_size :] = 0  # the padding is lost, and comes back as zeros
    theirs = rule.split(ours)
    assert [tuple(part.shape) for part in theirs] == list(rule.theirs.values())
    assert torch.equal(rule.join(theirs), ours)
    kept = torch.cat([part.reshape(-1) for part in theirs[: 1 if model.norms == 1 else None]])
    assert torch.equal(kept.sort().values, ours[ours != 0].sort().values), rule.name


def test_rotary_pairs_become_neighbours_and_the_rest_stays() -> None:
    row = torch.arange(10)
    assert interleave(row, 0, 6).tolist() == [0, 3, 1, 4, 2, 5, 6, 7, 8, 9]
    assert torch.equal(separate(interleave(row, 0, 6), 0, 6), row)


@needs_transformers
def test_names_without_the_prefix_and_stored_constants_are_accepted(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_tiny("gpt2", tmp_path)
    whole = HuggingFaceFolder(tmp_path)
    bare = {n.removeprefix("transformer."): t for n, t in tensors_in(tmp_path).items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    bare["lm_head.weight"] = bare["wte.weight"].clone()
    expected = {name: whole.read(name) for name in whole.shapes}
    save_file(bare, tmp_path / "model.safetensors")
    found = HuggingFaceFolder(tmp_path)
    for name, tensor in expected.items():
        assert torch.equal(found.read(name), tensor)


def test_an_export_refuses_weights_of_another_model(tmp_path: Path) -> None:
    made = dataclasses.replace(_stored(tmp_path), model=_model("llama", hidden=48))
    with pytest.raises(InputError, match=r"embedding\.weight is \[128, 64\] in the checkpoint"):
        export_model(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_refuses_unknown_types_and_full_folders(tmp_path: Path) -> None:
    made = _stored(tmp_path)
    with pytest.raises(InputError, match="dtype 'fp8' is unknown"):
        export_model(made, tmp_path / "out", dtype="fp8")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(InputError, match="is not an empty folder"):
        export_model(made, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["mine"]


class _Random:
    """Weights that are in no file."""

    def __init__(self, model: ModelConfig) -> None:
        self.shapes = parameter_shapes(model.architecture)

    def read(self, name: str) -> torch.Tensor:
        return torch.randn(self.shapes[name])


def _stored(folder: Path) -> Any:
    from headway.trainer.exchange.source import StoredModel

    model = _model("llama")
    return StoredModel(folder, "run", model, _Random(model), folder / "tokenizer.json", 3)


def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    made = _stored(tmp_path)

    class Failing(_Random):
        def read(self, name: str) -> torch.Tensor:
            if name == "final_norm.weight":
                raise InputError("the disk is gone")
            return super().read(name)

    made = dataclasses.replace(made, weights=Failing(made.model))
    with pytest.raises(InputError, match="the disk is gone"):
        export_model(made, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
