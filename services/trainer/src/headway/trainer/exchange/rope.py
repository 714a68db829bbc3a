"""Rotary positions in a ``config.json``: the keys of transformers 4, and those of 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.common.errors import ConfigError, InputError
from headway.trainer.config.architecture import Architecture, RopeScaling
from headway.trainer.exchange.config_file import ConfigFile

_KEYS: Mapping[str, str] = {
    "factor": "factor",
    "low_freq_factor": "low",
    "high_freq_factor": "high",
    "original_max_position_embeddings": "original_len",
}
_ALSO = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def rope_settings(
    config: ConfigFile,
    *,
    theta: str = "rope_theta",
    fraction: str = "partial_rotary_factor",
    default_fraction: float = 1.0,
) -> dict[str, Any]:
    """``rope_theta``, ``rope_fraction`` and ``rope_scaling`` of a model.

    ``theta`` and ``fraction`` are the family's names of keys outside ``rope_parameters``.

    Raises:
        InputError: another kind of scaling than ``default`` and ``llama3``, or impossible numbers.
    """
    key = "rope_scaling" if config.get("rope_scaling", dict, {}) else "rope_parameters"
    table: dict[str, Any] = config.get(key, dict, {})
    inner = ConfigFile(table, f"{config.where}: {key}")
    kind = inner.get("rope_type", str, inner.get("type", str, "default"))
    settings: dict[str, Any] = {
        "rope_theta": inner.get("rope_theta", float, config.get(theta, float, 10_000.0)),
        "rope_fraction": inner.get(
            "partial_rotary_factor", float, config.get(fraction, float, default_fraction)
        ),
    }
    if kind not in ("default", "llama3"):
        raise config.refused(key, "only the types default and llama3 are supported")
    if unknown := sorted(set(table) - set(_KEYS) - _ALSO):
        raise config.refused(key, f"{unknown[0]} is not supported")
    if kind == "llama3":
        settings["rope_scaling"] = _scaling(inner, config.get("max_position_embeddings", int, 0))
    return settings


def rope_keys(model: Architecture) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling``, which transformers 4 and 5 both read."""
    scaling = model.rope_scaling
    if scaling.factor == 1.0:
        return {"rope_theta": model.rope_theta, "rope_scaling": None}
    table = {theirs: getattr(scaling, ours) for theirs, ours in _KEYS.items()}
    return {
        "rope_theta": model.rope_theta,
        "rope_scaling": {**table, "rope_type": "llama3"},
    }


def _scaling(table: ConfigFile, longest: int) -> RopeScaling:
    """``longest`` is the length of the model, before the scaling too where nothing else is said."""
    if missing := [key for key in list(_KEYS)[:3] if table.get(key, float, -1.0) < 0]:
        raise InputError(f"{table.where} has no {missing[0]}", remedy="add it")
    try:
        return RopeScaling(
            factor=table.get("factor", float, 1.0),
            low=table.get("low_freq_factor", float, 1.0),
            high=table.get("high_freq_factor", float, 4.0),
            original_len=table.get("original_max_position_embeddings", int, longest),
        )
    except ConfigError as error:
        raise InputError(f"{table.where}: {error.message}", remedy=error.remedy) from error
