"""Which ports of a machine's RDMA adapters should carry the traffic of ranks.

NCCL takes every active port by default, also one of another network, for storage or management,
which the other machines may not reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")
DEV = Path("/dev")
_AMAZON, _EFA = "0x1d0f", "0xefa"  # PCI vendor, and the start of the numbers of all kinds of EFA
SLOWEST = 0.5
"""Share of the fastest port's rate below which a port belongs to another network."""


@dataclass(frozen=True)
class Port:
    """A port as the kernel shows it (Documentation/ABI/stable/sysfs-class-infiniband)."""

    adapter: str
    number: int
    link_layer: str
    """``InfiniBand``, ``Ethernet`` (RoCE), or ``Unspecified`` (EFA)."""
    is_active: bool
    gigabits: float


def ports(sysfs: Path = SYSFS) -> list[Port]:
    """All ports, in the order of their names; what cannot be read is left out."""
    return [
        port
        for folder in sorted((sysfs / "class" / "infiniband").glob("*/ports/*"))
        if (port := _read(folder)) is not None
    ]


def chosen_ports(sysfs: Path, link_layer: str) -> list[str]:
    """``ADAPTER:PORT`` of those to use; empty where that is all, and NCCL needs no list."""
    found = ports(sysfs)
    fit = [port for port in found if port.link_layer == link_layer and port.is_active]
    least = SLOWEST * max((port.gigabits for port in fit), default=0.0)
    fit = [port for port in fit if port.gigabits >= least]
    return [f"{port.adapter}:{port.number}" for port in fit] if len(fit) < len(found) else []


@dataclass(frozen=True)
class Efa:
    """What there is of AWS's Elastic Fabric Adapter, which NCCL reaches through libfabric."""

    adapters: tuple[str, ...]
    """Those that the driver serves."""
    without_driver: int
    """Number of PCI devices of this kind that no driver serves."""
    driver: str
    """Version of the driver; empty where it is not loaded, or the kernel's own."""
    has_verbs: bool
    """Whether programs can reach an adapter; a container may lack ``/dev/infiniband``."""


def efa(sysfs: Path = SYSFS, dev: Path = DEV) -> Efa:
    """The machine's EFA, as its kernel shows it."""
    adapters = tuple(
        folder.name
        for folder in sorted((sysfs / "class" / "infiniband").glob("*"))
        if _driver_of(folder / "device") == "efa"
    )
    idle = [
        folder
        for folder in (sysfs / "bus" / "pci" / "devices").glob("*")
        if _text(folder / "vendor") == _AMAZON
        and _text(folder / "device").startswith(_EFA)
        and not _driver_of(folder)
    ]
    version = _text(sysfs / "module" / "efa" / "version")
    has_verbs = any((dev / "infiniband").glob("uverbs*"))
    return Efa(adapters, len(idle), version, has_verbs)


def _driver_of(device: Path) -> str:
    return (device / "driver").resolve().name if (device / "driver").exists() else ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _read(folder: Path) -> Port | None:
    try:
        return Port(
            folder.parents[1].name,
            int(folder.name),
            (folder / "link_layer").read_text().strip(),
            "ACTIVE" in (folder / "state").read_text(),
            float((folder / "rate").read_text().split()[0]),
        )
    except (OSError, ValueError, IndexError):
        return None
