"""Checks that several tables share."""

from __future__ import annotations

from headway.common.errors import ConfigError


def within(table: str, low: float, high: float, **values: float) -> None:
    """Raises ConfigError unless each value is in [low, high); NaN never is."""
    for name, value in values.items():
        if not low <= value < high:
            raise ConfigError(
                f"{table}.{name}={value} is out of range",
                remedy=f"use {low:g} or more, below {high:g}",
            )


def positive(table: str, **values: int) -> None:
    """Raises ConfigError unless each value is 1 or more."""
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{table}.{name}={value} is below 1", remedy="use 1 or more")
