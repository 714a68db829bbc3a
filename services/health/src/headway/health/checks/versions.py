"""Checks that all parts of Headway have one version, on a supported Python."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions

from headway.health.checks.base import CheckSettings, Finding

PYTHONS = ((3, 11), (3, 13))
SHOWN = ("numpy", "pyzmq", "msgspec", "torch", "cupy-cuda13x")


@dataclass(frozen=True)
class Installed:
    """What this Python runs on and has."""

    python: str
    kernel: str
    versions: dict[str, str]
    """Version of each distribution, by name."""


def check(settings: CheckSettings) -> Finding:
    """Read the metadata of the installed distributions, without importing them."""
    found = {
        dist.metadata["Name"]: dist.version
        for dist in distributions()
        if dist.metadata and dist.metadata["Name"]
    }
    return judge(Installed(platform.python_version(), platform.release(), found), settings)


def judge(measured: Installed, _settings: CheckSettings) -> Finding:
    """The finding about what is installed."""
    found = measured.versions
    ours = {name: version for name, version in found.items() if name.startswith("headway-")}
    values: dict[str, float | str] = {
        "python": measured.python,
        "kernel": measured.kernel,
        **{name: found[name] for name in (*sorted(ours), *SHOWN) if name in found},
    }
    if (trouble := _trouble(measured.python, ours)) is not None:
        return Finding(False, *trouble, values)
    message = f"Python {measured.python}, {len(ours)} parts of one version"
    return Finding(True, message, values=values)


def _trouble(python: str, ours: Mapping[str, str]) -> tuple[str, str] | None:
    """(message, remedy), or None if all versions fit."""
    if not PYTHONS[0] <= tuple(map(int, python.split(".")[:2])) <= PYTHONS[1]:
        supported = " to ".join(".".join(map(str, version)) for version in PYTHONS)
        return f"Python {python} is not supported", f"use Python {supported}"
    if len(set(ours.values())) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in sorted(ours.items()))
        return (
            f"parts of different versions: {listed}",
            "install the same version of every headway- part",
        )
    return None
