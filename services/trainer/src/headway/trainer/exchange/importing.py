"""A Hugging Face folder becomes a checkpoint of step 0, from which runs of any layout begin."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
from headway.ckpt_store.client import write_tensors
from headway.common.config import to_toml
from headway.common.node.run_dir import new_run_id
from headway.trainer.config.model import ModelConfig
from headway.trainer.exchange.checkpoint import CHECKPOINTS
from headway.trainer.exchange.folder import HuggingFaceFolder
from headway.trainer.exchange.new_folder import new_folder
from headway.trainer.exchange.report import ExchangeReport, count
from headway.trainer.exchange.source import MODEL_TOML, TOKENIZER
from headway.trainer.state.train_state import TrainState

COPIED = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)
"""Files of the folder that an export needs again."""


def import_model(source: Path, target: Path) -> ExchangeReport:
    """Write the Hugging Face model of ``source`` to ``target``.

    The target gets ``model.toml`` with every key of the model, ``checkpoints/``, and the
    tokenizer's files. No more than one parameter is in memory.

    Raises:
        InputError: ``source`` cannot be read, or ``target`` is not empty; nothing was written.
    """
    folder = HuggingFaceFolder(source)

    def read(name: str) -> npt.NDArray[np.float32]:
        return np.asarray(folder.read(name).contiguous().numpy())

    with new_folder(target) as draft:
        extra = TrainState(step=0, samples=0).pack()
        shapes = folder.shapes
        write_tensors(draft / CHECKPOINTS, shapes, read, extra=extra, run_id=new_run_id())
        for name in COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, draft / name)
        (draft / MODEL_TOML).write_text(
            _toml(folder.model, target, has_tokenizer=(draft / TOKENIZER).exists())
        )
    return ExchangeReport(
        source=source,
        target=target,
        family=folder.family.model_type,
        parameters=count(shapes.values()),
        tensors=len(shapes),
        dtype="fp32",
        has_tokenizer=(target / TOKENIZER).exists(),
    )


def _toml(model: ModelConfig, target: Path, *, has_tokenizer: bool) -> str:
    """The table [model] with every key, where the first weights are, and the tokenizer."""
    values = {
        field.name: getattr(model.architecture, field.name)
        for field in dataclasses.fields(model.architecture)
    }
    folder = target.absolute()
    tokenizer = str(folder / TOKENIZER) if has_tokenizer else ""
    tables = _Tables(dataclasses.replace(model, **values), _Train(str(folder)), _Data(tokenizer))
    return f"# From a Hugging Face folder by `headway model import`.\n{to_toml(tables)}"


@dataclasses.dataclass(frozen=True)
class _Train:
    init_from: str


@dataclasses.dataclass(frozen=True)
class _Data:
    tokenizer: str


@dataclasses.dataclass(frozen=True)
class _Tables:
    model: ModelConfig
    train: _Train
    data: _Data
