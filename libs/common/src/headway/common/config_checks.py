"""Checks that the tables of a configuration share."""

from __future__ import annotations

from headway.common.errors import ConfigError


def at_least(config: object, table: str, least: int, *names: str) -> None:
    """Raises ConfigError unless each option of ``names`` is ``least`` or more; None is not set.

    ``table`` is shown before the name, as in ``ckpt.keep``; nothing is if it is "".
    """
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ConfigError(
                f"{_full(table, name)}={value} is below {least}", remedy=f"use {least} or more"
            )


def above_zero(config: object, table: str, *names: str) -> None:
    """Raises ConfigError unless each option of ``names`` is above 0; NaN never is."""
    for name in names:
        value = getattr(config, name)
        if not value > 0:
            raise ConfigError(
                f"{_full(table, name)}={value} is not above 0", remedy="use a number above 0"
            )


def within(config: object, table: str, low: float, high: float, *names: str) -> None:
    """Raises ConfigError unless each option of ``names`` is in [low, high); NaN never is."""
    for name in names:
        value = getattr(config, name)
        if not low <= value < high:
            raise ConfigError(
                f"{_full(table, name)}={value} is out of range",
                remedy=f"use {low:g} or more, below {high:g}",
            )


def _full(table: str, name: str) -> str:
    return f"{table}.{name}" if table else name
