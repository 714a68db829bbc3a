"""A run's configuration as it leaves the machine: to dashboards, and to consoles elsewhere."""

from __future__ import annotations

from dataclasses import replace

from headway.health.notify.address import shown
from headway.trainer.config import RunConfig


def shared(config: RunConfig) -> RunConfig:
    """The same without secrets: of each web address only scheme, host and port."""
    notify = tuple(shown(url) for url in config.health.notify)
    return replace(config, health=replace(config.health, notify=notify))
