"""A run's configuration as it leaves the machine: to dashboards, and to consoles elsewhere."""

from __future__ import annotations

from dataclasses import replace

from headway.trainer.config import RunConfig


def shared(config: RunConfig) -> RunConfig:
    """Return the configuration without what only the run itself may know."""
    return replace(config, health=config.health.without_secrets())
