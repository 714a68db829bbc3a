"""A run at one moment, as a watcher hands it to its subscribers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headway.common.output import counted
from headway.console.analysis.curve import Point
from headway.console.analysis.episodes import Recovery
from headway.console.live.progress import Progress
from headway.console.widgets.tail import Records


@dataclass(frozen=True)
class Band:
    """A recovery on the flight records' clock, with why it came and what it cost."""

    recovery: Recovery
    repeated: int = 0
    """Completed steps that were done again."""

    @property
    def start_s(self) -> float:
        """When the first rank was known to be lost: monotonic seconds of the driver's host."""
        return self.recovery.begun_s

    @property
    def end_s(self) -> float | None:
        """When all ranks stepped again, None while they do not."""
        return self.recovery.ended_s

    @property
    def reason(self) -> str:
        """What was lost."""
        return self.recovery.reason

    @cached_property
    def cost(self) -> str:
        """What it cost, in words."""
        recovery = self.recovery
        if recovery.total_s is None:
            return "under way"
        steps = counted(self.repeated, "step") if self.repeated else "no step"
        parts = {
            "until noticed": recovery.detect_s,
            "until a new generation began": recovery.decide_s,
            "until all ranks were restored": recovery.restore_s,
            "until all ranks stepped": recovery.first_step_s,
        }
        spans = ", ".join(f"{s:.2f} s {name}" for name, s in parts.items() if s is not None)
        where = {"durable": "a checkpoint", "arena": "memory", "init": "the start"}
        source = where.get(recovery.source, recovery.source or "unknown")
        return (
            f"{recovery.total_s:.2f} s in all ({spans}){', in a pause' * recovery.is_paused}; "
            f"{steps} repeated; "
            f"state of step {recovery.step} from {source}"
        )


@dataclass(frozen=True)
class Picture:
    """What a widget shows and a test looks at."""

    progress: Progress
    number: int
    """Counted from 1 by the watcher: what is new is new since the picture before."""
    points: tuple[Point, ...]
    """The course of the run, columns ``analysis.curve.COLUMNS``."""
    num_unchanged: int
    """So many of the points are the same as before."""
    validation: tuple[tuple[float, float], ...]
    """Completed steps and loss."""
    new: Records
    """Flight records that ended since the picture before."""
    kept: tuple[Records, ...]
    """Those of the newest seconds, the open ones last."""
    window_s: float
    bands: tuple[Band, ...] = ()
    news: tuple[str, ...] = ()
    skipped: tuple[int, ...] = ()
    """Steps whose update was skipped: not finite, or spikes."""
    log: tuple[str, ...] = ()
    """Newest log lines of the selected rank."""
    clock_offset_s: float = 0.0
    """Unix time less the records' clock."""
    mfu_per_rate: float | None = None
    """MFU at one token per second, None while the peak is unknown."""
    step_times_s: tuple[float, float] = (0.0, 0.0)
    """Median and 99th percentile over the newest steps."""
