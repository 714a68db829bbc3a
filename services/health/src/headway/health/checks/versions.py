"""Checks that all parts of Headway have one version, on a supported Python."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import distributions

from headway.health.checks.base import CheckSettings, Finding

PYTHONS = ((3, 11), (3, 13))
SHOWN = ("numpy", "pyzmq", "msgspec", "torch", "cupy-cuda13x")


def check(_settings: CheckSettings) -> Finding:
    """Read the metadata of the installed distributions, without importing them."""
    found = {
        dist.metadata["Name"]: dist.version
        for dist in distributions()
        if dist.metadata and dist.metadata["Name"]
    }
    ours = {name: version for name, version in found.items() if name.startswith("headway-")}
    values: dict[str, float | str] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        **{name: found[name] for name in (*sorted(ours), *SHOWN) if name in found},
    }
    trouble = judge(sys.version_info[:2], ours)
    if trouble is not None:
        return Finding(False, *trouble, values)
    return Finding(
        True, f"Python {values['python']}, {len(ours)} parts of one version", values=values
    )


def judge(python: tuple[int, ...], ours: Mapping[str, str]) -> tuple[str, str] | None:
    """(message, remedy), or None if all versions fit."""
    if not PYTHONS[0] <= python <= PYTHONS[1]:
        supported = " to ".join(".".join(map(str, version)) for version in PYTHONS)
        return f"Python {'.'.join(map(str, python))} is not supported", f"use Python {supported}"
    if len(set(ours.values())) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(ours.items()))
        return (
            f"parts of different versions: {listed}",
            "install the same version of every headway- part",
        )
    return None
