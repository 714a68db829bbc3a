"""A family of Hugging Face models: which models it can express, its configuration and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.trainer.config.architecture import Architecture
from headway.trainer.exchange.config_file import ConfigFile
from headway.trainer.exchange.rules import Rule


@dataclass(frozen=True)
class Family:
    """One ``model_type``."""

    model_type: str
    class_name: str
    """The class of transformers that has the head."""
    settings: Callable[[ConfigFile], dict[str, Any]]
    """The keys of ``[model]`` from a configuration. Raises InputError."""
    keys: Callable[[Architecture], dict[str, Any]]
    """The keys of ``config.json`` from a model; the inverse of ``settings``."""
    rules: Callable[[Architecture], list[Rule]]
    """How every parameter is made of the family's tensors, in the order of the model."""
    needs: Mapping[str, tuple[object, ...]]
    """The values of a model's keys that the family can express; it takes any of other keys."""
    is_plain: bool = False
    """Whether it has as many heads of keys as of queries, which are ``hidden`` wide together."""
    prefix: str = ""
    """Before most names; published files may lack it."""
    ignored: tuple[str, ...] = ()
    """Patterns of names that are not weights: constants that old versions stored."""

    def obstacle(self, model: Architecture) -> str:
        """Why the family cannot express a model, "" if it can."""
        for key, values in self.needs.items():
            if getattr(model, key) not in values:
                shown = " or ".join(str(value) for value in values)
                return f"{self.model_type} needs {key}={shown}"
        if self.is_plain and model.kv_heads != model.heads:
            return f"{self.model_type} needs kv_heads={model.heads}"
        if self.is_plain and model.heads_width != model.hidden:
            return f"{self.model_type} needs head_dim={model.hidden // model.heads}"
        return ""
