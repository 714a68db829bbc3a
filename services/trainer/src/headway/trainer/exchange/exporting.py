"""A checkpoint of any layout becomes a Hugging Face folder, one parameter at a time."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from headway.common.errors import InputError
from headway.trainer.exchange.config_file import CONFIG
from headway.trainer.exchange.families import family_for
from headway.trainer.exchange.folder import INDEX, WEIGHTS
from headway.trainer.exchange.importing import COPIED
from headway.trainer.exchange.new_folder import new_folder
from headway.trainer.exchange.report import ExchangeReport, count
from headway.trainer.exchange.rules import Rule
from headway.trainer.exchange.source import TOKENIZER, StoredModel
from headway.trainer.exchange.tensor_file import Planned, TensorFileWriter

TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
FILE_BYTES = 5_000_000_000
"""Largest file of weights, unless one tensor alone is larger."""


def export_model(
    source: StoredModel, target: Path, *, dtype: str = "bf16", file_bytes: int = FILE_BYTES
) -> ExchangeReport:
    """Write ``target``: weights, ``config.json`` and the tokenizer.

    Master weights are rounded to ``dtype``; no more than one parameter is in memory.

    Raises:
        InputError: an unknown type, a model that no family can express, weights of another model,
            or ``target`` is not empty; nothing was written. CorruptError: a damaged checkpoint.
    """
    if dtype not in TYPES:
        raise InputError(f"dtype {dtype!r} is unknown", remedy=f"use one of {', '.join(TYPES)}")
    if source.kind == "huggingface":
        raise InputError(
            f"{source.path} is a Hugging Face folder already", remedy="copy it, or give a run"
        )
    family = family_for(source.model)
    rules = family.rules(source.model.architecture)
    _check(source, rules)
    files = _cut(rules, TYPES[dtype].itemsize, file_bytes)
    with new_folder(target) as draft:
        _write_weights(draft, source, rules, files, TYPES[dtype])
        special = _write_tokenizer(draft, source)
        keys = {
            **family.keys(source.model.architecture),
            **special,
            "architectures": [family.class_name],
            "model_type": family.model_type,
            "torch_dtype": str(TYPES[dtype]).removeprefix("torch."),
        }
        _write_json(draft / CONFIG, keys)
        if not (draft / "generation_config.json").exists():
            _write_json(draft / "generation_config.json", special)
    return ExchangeReport(
        source=source.path,
        target=target,
        family=family.model_type,
        parameters=count(source.weights.shapes.values()),
        tensors=sum(len(plan) for plan in files.values()),
        dtype=dtype,
        has_tokenizer=(target / TOKENIZER).exists(),
        step=source.step,
        files=len(files),
    )


def _check(source: StoredModel, rules: Sequence[Rule]) -> None:
    """Raises InputError unless the weights are those of the model."""
    wanted = {rule.name: rule.shape for rule in rules if rule.name}
    found = source.weights.shapes
    for name in (*wanted, *found):
        if wanted.get(name) != found.get(name):
            raise InputError(
                f"{source.path}: {name} is {list(found.get(name, ()))} in the checkpoint and "
                f"{list(wanted.get(name, ()))} by the configuration",
                remedy="give the folder of the run that wrote the checkpoint",
            )


def _cut(rules: Sequence[Rule], itemsize: int, limit: int) -> dict[str, list[Planned]]:
    """The tensors of each file, by its name."""
    parts: list[list[Planned]] = [[]]
    used = 0
    for rule in rules:
        for name, shape in rule.theirs.items():
            nbytes = math.prod(shape) * itemsize
            if parts[-1] and used + nbytes > limit:
                parts.append([])
                used = 0
            parts[-1].append(Planned(name, shape))
            used += nbytes
    if len(parts) == 1:
        return {WEIGHTS: parts[0]}
    stem, total = WEIGHTS.removesuffix(".safetensors"), len(parts)
    return {
        f"{stem}-{number:05d}-of-{total:05d}.safetensors": part
        for number, part in enumerate(parts, 1)
    }


def _write_weights(
    folder: Path,
    source: StoredModel,
    rules: Sequence[Rule],
    files: dict[str, list[Planned]],
    dtype: torch.dtype,
) -> None:
    made = _tensors(source, rules, dtype)
    for file, plan in files.items():
        with TensorFileWriter(folder / file, plan, dtype) as writer:
            for _ in plan:
                writer.add(*next(made))
    if len(files) > 1:
        shapes = [item.shape for plan in files.values() for item in plan]
        total = count(shapes) * dtype.itemsize
        where = {item.name: file for file, plan in files.items() for item in plan}
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})


def _tensors(
    source: StoredModel, rules: Sequence[Rule], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    for rule in rules:
        ours = source.weights.read(rule.name).to(dtype) if rule.name else torch.empty(0)
        yield from zip(rule.theirs, rule.split(ours), strict=True)


def _write_tokenizer(folder: Path, source: StoredModel) -> dict[str, Any]:
    """Copy the tokenizer, if there is one; returns the keys of its special tokens."""
    if source.kind == "imported":
        for name in COPIED:
            if (source.path / name).is_file():
                shutil.copyfile(source.path / name, folder / name)
        special = _special_of(folder / "generation_config.json")
        if special or (folder / "tokenizer_config.json").exists():
            return special
    if not source.tokenizer.is_file():
        return {}
    shutil.copyfile(source.tokenizer, folder / TOKENIZER)
    from headway.dataloader import Dataset, Tokenizer

    folder_of_data = source.tokenizer.parent
    tokenizer = (
        Dataset(folder_of_data).tokenizer
        if (folder_of_data / "meta.json").is_file()
        else Tokenizer.load(source.tokenizer)
    )
    eod_id = tokenizer.eod_id
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokenizer.end_of_text,
            "eos_token": tokenizer.end_of_text,
            "model_max_length": source.model.seq_len,
        },
    )
    return {"bos_token_id": eod_id, "eos_token_id": eod_id}


def _special_of(path: Path) -> dict[str, Any]:
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    try:
        table = json.loads(path.read_bytes())
        return {key: table[key] for key in keys if table.get(key) is not None}
    except (OSError, ValueError, AttributeError):
        return {}


def _write_json(path: Path, table: dict[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n")
