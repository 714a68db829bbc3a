"""The ``config.json`` of a Hugging Face folder, read with errors that name the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from headway.common.errors import InputError

CONFIG = "config.json"
UNSUPPORTED: Mapping[str, str] = {
    "quantization_config": "quantised weights",
    "attn_logit_softcapping": "capped attention scores",
    "final_logit_softcapping": "capped logits",
    "num_local_experts": "mixture of experts",
    "num_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "add_cross_attention": "cross-attention",
    "scale_attn_by_inverse_layer_idx": "attention scores scaled by the layer's number",
    "is_encoder_decoder": "encoder",
    "auto_map": "code from a model's folder",
}
"""Keys that change what a model computes, refused unless they are absent, null, false or 0."""

T = TypeVar("T")


class ConfigFile:
    """The keys of one configuration."""

    def __init__(self, values: Mapping[str, Any], where: str = CONFIG) -> None:
        """Raises InputError if it asks for something that Headway does not have."""
        self._values, self.where = values, where
        for key, what in UNSUPPORTED.items():
            if values.get(key):
                raise self.refused(key, f"Headway has no {what}")
        for key in ("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"):
            if values.get(key) not in (None, 1, 1.0):
                raise self.refused(key, "Headway has no scaled activations")

    @classmethod
    def read(cls, folder: Path) -> ConfigFile:
        """Raises InputError: no such file, or it is not a JSON object."""
        path = folder / CONFIG
        try:
            values = json.loads(path.read_bytes())
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror}",
                remedy="give a folder as `huggingface-cli download` or `save_pretrained` make it",
            ) from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not JSON: {error}", remedy="download it again") from error
        if not isinstance(values, dict):
            raise InputError(f"{path} is not a JSON object", remedy="download it again")
        return cls(values, str(path))

    def get(self, key: str, kind: type[T], default: T) -> T:
        """The value of ``key``, ``default`` if it is absent or null; an int counts as a float.

        Raises:
            InputError: a value of another kind.
        """
        value = self._values.get(key)
        if value is None:
            return default
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.refused(key, f"it is not {_NAMES.get(kind, kind.__name__)}")
        return value

    def need(self, key: str) -> int:
        """A size that has no default. Raises InputError: it is absent, or below 1."""
        if self._values.get(key) is None:
            raise InputError(f"{self.where} has no {key}", remedy="add it, or download it again")
        value = self.get(key, int, 0)
        if value < 1:
            raise self.refused(key, "it is below 1")
        return value

    def require(self, key: str, wanted: object) -> None:
        """Raises InputError unless ``key`` is absent or has the one supported value."""
        if self._values.get(key, wanted) != wanted:
            raise self.refused(key, f"only {json.dumps(wanted)} is supported")

    def refused(self, key: str, why: str) -> InputError:
        """An error about a key."""
        shown = json.dumps(self._values.get(key))
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return InputError(f"{self.where} has {key}={shown}: {why}", remedy="use a model without it")


_NAMES: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "an object",
    list: "a list",
}
