"""The settings of the checkpoint store: table ``[ckpt]`` of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.common.config_checks import above_zero, at_least, within


@dataclass(frozen=True)
class StoreConfig:
    """What is kept on disk, and the resources that the store uses."""

    durable_every: int = 50
    """Steps between two durable checkpoints. Each of them is a snapshot in memory first, whatever
    ``snapshot_every`` is."""
    snapshot_every: int | Literal["auto"] = 1
    """Steps between two snapshots in memory: a recovery that finds them repeats up to that many
    completed steps. More than 1 copies less often; it does not save memory. ``auto`` measures how
    long a step and a copy take, and takes the fewest steps (a power of two, at most 64) in whose
    time a copy takes half or less."""
    keep: int = 3
    """Complete checkpoints that retention keeps, plus pinned ones. The newest is never removed."""
    verify_before_remove: Literal["digests", "sizes"] = "digests"
    """How retention checks the newest checkpoint before it removes an older one: read back every
    byte once, or only compare lengths (for folders where reading costs too much)."""
    nice: int = 10
    """Niceness the daemon gives itself, 0..19: training wins wherever both want a core. With 10 the
    daemon's weight in the Linux scheduler is 110 to a trainer's 1024."""
    scan_period_s: float = 0.05
    """How often the daemon looks at the arenas; a look is a handful of memory reads per rank."""
    folder_period_s: float = 0.5
    """How often the daemon lists the checkpoints folder for the parts of other nodes."""

    def __post_init__(self) -> None:
        at_least(self, "ckpt", 1, "durable_every", "keep")
        if self.snapshot_every != "auto":
            at_least(self, "ckpt", 1, "snapshot_every")
        within(self, "ckpt", 0, 20, "nice")
        above_zero(self, "ckpt", "scan_period_s", "folder_period_s")
