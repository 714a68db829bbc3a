"""The family of a Hugging Face folder, and the family that a model is exported as."""

from __future__ import annotations

from headway.common.errors import ConfigError, InputError
from headway.trainer.config.model import ModelConfig
from headway.trainer.exchange.config_file import ConfigFile
from headway.trainer.exchange.family import Family
from headway.trainer.exchange.gpt2 import GPT2
from headway.trainer.exchange.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from headway.trainer.exchange.neox import NEOX

FAMILIES = {family.model_type: family for family in (LLAMA, MISTRAL, QWEN2, QWEN3, GPT2, NEOX)}
"""In the order in which an export tries them, after the one of the model's preset."""
_OF_PRESET = {"neox": "gpt_neox"}


def read_model(config: ConfigFile) -> tuple[Family, ModelConfig]:
    """The family of a ``config.json`` and the model that it describes.

    Raises:
        InputError: an unknown family, or something that Headway does not have.
    """
    kind = config.get("model_type", str, "")
    family = FAMILIES.get(kind)
    if family is None:
        known = ", ".join(FAMILIES)
        raise InputError(
            f"{config.where} has model_type={kind!r}, which is not supported",
            remedy=f"use a model of {known}",
        )
    try:
        return family, ModelConfig(**family.settings(config))
    except ConfigError as error:
        raise InputError(  # the error's own remedy is for a new model
            f"{config.where}: {error.message}",
            remedy="choose another model, or correct the file if it is damaged",
        ) from error


def family_for(model: ModelConfig) -> Family:
    """The family to export a model as.

    Raises:
        InputError: no family can express it; names what each one would need.
    """
    own = FAMILIES.get(_OF_PRESET.get(model.preset, model.preset))
    families = [*([own] if own else []), *FAMILIES.values()]
    obstacles = {family.model_type: family.obstacle(model.architecture) for family in families}
    for family in families:
        if not obstacles[family.model_type]:
            return family
    raise InputError(
        f"no Hugging Face family can express this model: {', '.join(obstacles.values())}",
        remedy="set one of these in a new run, or use the checkpoints themselves",
    )
