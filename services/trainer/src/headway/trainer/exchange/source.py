"""Where a model comes from: a run, a folder of ``headway model import``, or of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from headway.ckpt_store.client import CheckpointTensors
from headway.common.config import load
from headway.common.errors import InputError
from headway.trainer.config import RunConfig
from headway.trainer.config.model import ModelConfig
from headway.trainer.exchange.checkpoint import checkpoint_in
from headway.trainer.exchange.config_file import CONFIG
from headway.trainer.exchange.folder import HuggingFaceFolder

MODEL_TOML = "model.toml"
TOKENIZER = "tokenizer.json"


class Weights(Protocol):
    """Parameters by name, whole, one at a time."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every parameter and its shape."""

    def read(self, name: str) -> torch.Tensor:
        """One parameter, on the CPU; raises InputError or CorruptError."""


class CheckpointWeights:
    """The master weights of a checkpoint, fp32 or fp64."""

    def __init__(self, tensors: CheckpointTensors) -> None:
        self._tensors = tensors

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every parameter and its shape."""
        return self._tensors.shapes

    def read(self, name: str) -> torch.Tensor:
        """One whole parameter. Raises CorruptError."""
        return torch.from_numpy(self._tensors.read(name))


@dataclass(frozen=True)
class StoredModel:
    """A model on disk: its configuration, weights and tokenizer."""

    path: Path
    kind: str
    """``run``, ``imported`` or ``huggingface``."""
    model: ModelConfig
    weights: Weights
    tokenizer: Path
    """Its ``tokenizer.json``, which need not exist."""
    step: int | None = None
    """Completed steps of the checkpoint; None for a Hugging Face folder."""


def open_model(path: Path, step: int | None = None) -> StoredModel:
    """The model of a folder; of a run, its newest checkpoint or that of ``step``.

    Raises:
        InputError: no such folder, checkpoint or step, or a model that cannot be read.
        CorruptError: the checkpoint is damaged.
    """
    for name, kind in (("config.toml", "run"), (MODEL_TOML, "imported")):
        if (path / name).is_file():
            config = load(RunConfig, [path / name])
            info = checkpoint_in(path, step)
            tokenizer = Path(config.data.path) if kind == "run" else path
            return StoredModel(
                path,
                kind,
                config.model,
                CheckpointWeights(CheckpointTensors(info)),
                tokenizer / TOKENIZER,
                info.step,
            )
    if (path / CONFIG).is_file():
        if step is not None:
            raise InputError(
                f"{path} has no steps: it is a Hugging Face folder", remedy="leave --step out"
            )
        folder = HuggingFaceFolder(path)
        return StoredModel(path, "huggingface", folder.model, folder, path / TOKENIZER)
    raise InputError(
        f"{path} is not a model",
        remedy="give a run, a folder of `headway model import`, or a Hugging Face folder",
    )
