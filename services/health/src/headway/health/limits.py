"""The table of least values (``limits.toml``) for machines that have no fleet yet."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

import msgspec


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row: a value that machines of some types reach at least."""

    host: str
    """A part of the host type; empty means any."""
    value: str
    """A pattern of ``CHECK VALUE``."""
    at_least: float
    """In the unit at the end of ``value``."""
    source: str


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    limit: list[Limit]


@cache
def shipped_limits() -> tuple[Limit, ...]:
    """The rows that come with this version, in their order."""
    text = files("headway.health").joinpath("limits.toml").read_text()
    return tuple(msgspec.convert(tomllib.loads(text), _Table).limit)


def limit_of(limits: Sequence[Limit], host_type: str, name: str) -> Limit | None:
    """The first row for a value of a host type, None if there is none."""
    for row in limits:
        if row.host in host_type and fnmatchcase(name, row.value):
            return row
    return None
