"""Metric sinks: what an exporter of the journal writes for TensorBoard and Weights & Biases.

Training does not take part: an exporter reads the run's journal, keeps its position on disk beside
what it has written, and continues from there after a restart of its own or of the run.
"""

from __future__ import annotations

import importlib

from headway.console.sinks.items import MakeSink

__all__ = ["CLASSES", "MakeSink", "sink"]

CLASSES = {
    "tensorboard": ("event_files", "EventFiles"),
    "wandb": ("wandb_offline", "WandbOffline"),
}
"""Name of a sink -> its module and class."""


def sink(name: str) -> MakeSink:
    """The class of a sink of ``launch.sinks``; its package is imported here and not before."""
    module, attribute = CLASSES[name]
    found: MakeSink = getattr(importlib.import_module(f"headway.console.sinks.{module}"), attribute)
    return found
