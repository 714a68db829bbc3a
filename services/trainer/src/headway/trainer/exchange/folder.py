"""A Hugging Face folder: the tensors of one or several ``.safetensors`` files, whole one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from headway.common.errors import InputError
from headway.trainer.config.model import ModelConfig
from headway.trainer.exchange.config_file import ConfigFile
from headway.trainer.exchange.families import read_model
from headway.trainer.exchange.family import Family
from headway.trainer.exchange.rules import Rule, by_name
from headway.trainer.exchange.tensor_file import DTYPES, TensorFile

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


class HuggingFaceFolder:
    """A model of a folder, under the names and in the layout that Headway uses.

    Everything but the elements is checked when it is opened.
    """

    def __init__(self, path: Path) -> None:
        """Open the folder, and check its model and tensors.

        Raises:
            InputError: not such a folder, an unknown or unsupported model, or tensors that are
                missing, unknown, of another shape, or of a type that cannot be read.
        """
        self.path = path
        if not path.is_dir():
            raise InputError(f"{path} is not a folder", remedy="give a Hugging Face folder")
        self.family: Family
        self.model: ModelConfig
        self.family, self.model = read_model(ConfigFile.read(path))
        self._rules = {rule.name: rule for rule in self.family.rules(self.model.architecture)}
        self._files = _files(path)
        self._names = self._checked()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter and its shape, in the order of the model."""
        return {name: rule.shape for name, rule in self._rules.items()}

    def read(self, name: str) -> torch.Tensor:
        """A whole parameter, fp32, exactly the values of the file.

        Raises:
            InputError: the file cannot be read.
        """
        rule = self._rules[name]
        parts = [self._read(theirs).float() for theirs in rule.theirs]
        return rule.join(parts)

    def _read(self, name: str) -> torch.Tensor:
        stored = self._names[name]
        return self._files[stored].read(stored)

    def _checked(self) -> dict[str, str]:
        """Their name in the family -> the name in the files."""
        prefix, wanted = self.family.prefix, dict(by_name(list(self._rules.values())))
        constants = [*self.family.ignored]
        if self.model.architecture.tied:
            constants.append(r"(lm_head|embed_out)\.weight")  # a copy of the embedding
        known = re.compile("|".join(constants) or r"(?!)")
        names = {}
        for stored in self._files:
            whole = prefix + stored
            names[whole if whole in wanted or known.fullmatch(whole) else stored] = stored
        for name, rule in wanted.items():
            self._check(name, rule, names)
        for name in names:
            if name not in wanted and not known.fullmatch(name):
                raise InputError(
                    f"{self.path} has a tensor {names[name]} that a {self.family.model_type} "
                    "does not have",
                    remedy="use a model without additions, or merge adapters into it first",
                )
        return {name: names[name] for name in wanted}

    def _check(self, name: str, rule: Rule, names: Mapping[str, str]) -> None:
        if name not in names:
            raise InputError(
                f"{self.path} has no tensor {name}", remedy="download all of its .safetensors files"
            )
        file = self._files[names[name]]
        entry = file.entries[names[name]]
        if entry.shape != rule.theirs[name]:
            raise InputError(
                f"{file.path}: {name} has shape {list(entry.shape)}, config.json asks for "
                f"{list(rule.theirs[name])}",
                remedy="use the config.json that belongs to the weights",
            )
        if entry.dtype not in DTYPES:
            raise InputError(
                f"{file.path}: {name} is {entry.dtype}",
                remedy=f"convert it to one of {', '.join(DTYPES)} first",
            )


def _files(folder: Path) -> dict[str, TensorFile]:
    """Name of each tensor -> the file that holds it."""
    if (folder / INDEX).exists():
        opened = {name: TensorFile(folder / name) for name in _listed(folder / INDEX)}
    elif (folder / WEIGHTS).exists():
        opened = {WEIGHTS: TensorFile(folder / WEIGHTS)}
    else:
        others = sorted(path.name for path in _pickled(folder))
        raise InputError(
            f"{folder} has no {WEIGHTS}, only {others[0]}"
            if others
            else f"{folder} has neither {WEIGHTS} nor {INDEX}",
            remedy="convert it with transformers: model.save_pretrained(folder); pickled files "
            "can run code and are not read"
            if others
            else "download the .safetensors files",
        )
    files: dict[str, TensorFile] = {}
    for file in opened.values():
        for name in file.entries:
            if name in files:
                raise InputError(
                    f"{name} is in {files[name].path.name} and in {file.path.name}",
                    remedy="remove one of the two files",
                )
            files[name] = file
    return files


def _pickled(folder: Path) -> Iterator[Path]:
    for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt"):
        yield from folder.glob(pattern)


def _listed(index: Path) -> list[str]:
    """The files that an index names, each once."""
    try:
        table = json.loads(index.read_bytes())["weight_map"]
        names = sorted({str(name) for name in table.values()})
    except OSError as error:
        raise InputError(
            f"cannot read {index}: {error.strerror}", remedy="download it again"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{index} is not an index of weights: {error!r}", remedy="download it again"
        ) from error
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise InputError(
                f"{index} names {name!r}",
                remedy="convert it with transformers: only .safetensors files beside the index "
                "are read",
            )
    return names
