"""The settings of the checkpoint store: table ``[ckpt]`` of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.common.errors import ConfigError


@dataclass(frozen=True)
class StoreConfig:
    """What is kept on disk, and the resources that the store uses."""

    durable_every: int = 50
    """Steps between two durable checkpoints. Each of them is a snapshot in memory first, whatever
    ``snapshot_every`` is."""
    snapshot_every: int = 1
    """Steps between two snapshots in memory: a recovery that finds them repeats up to that many
    completed steps. More than 1 copies less often; it does not save memory."""
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
        for name, value, least in (
            ("durable_every", self.durable_every, 1),
            ("snapshot_every", self.snapshot_every, 1),
            ("keep", self.keep, 1),
        ):
            if value < least:
                raise ConfigError(
                    f"ckpt.{name}={value} is below {least}",
                    remedy=f"set ckpt.{name} to {least} or more",
                )
        if not 0 <= self.nice <= 19:
            raise ConfigError(
                f"ckpt.nice={self.nice} is not within 0..19",
                remedy="choose a niceness from 0 to 19",
            )
        for name, period_s in (
            ("scan_period_s", self.scan_period_s),
            ("folder_period_s", self.folder_period_s),
        ):
            if not period_s > 0:
                raise ConfigError(
                    f"ckpt.{name}={period_s} is not positive",
                    remedy=f"set ckpt.{name} above 0",
                )
