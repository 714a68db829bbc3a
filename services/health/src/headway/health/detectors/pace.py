"""How long the first steps of a generation may take, by those of the generation before."""

from __future__ import annotations

from headway.common.wire.messages.health import WorkerSignals
from headway.health.config import HealthConfig


class Pace:
    """The pace of the whole run: the slowest rank counts.

    It is that of the whole run, since a rank may have moved to another node.
    """

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self._generation, self._slowest_s, self._is_warm = -1, 0.0, False
        self._earlier_s = 0.0

    def note(self, signals: WorkerSignals) -> None:
        """Take in the newest step of a rank of the current generation."""
        if signals.generation != self._generation:
            if self._is_warm:  # else its steps were cut short, and prove nothing
                self._earlier_s = self._slowest_s
            self._generation, self._slowest_s, self._is_warm = signals.generation, 0.0, False
        if 0 < signals.num_steps <= self._config.first_steps:
            self._slowest_s = max(self._slowest_s, signals.step_s)
        if signals.num_steps >= self._config.first_steps:
            self._slowest_s = max(self._slowest_s, signals.median_step_s)
            self._is_warm = True

    @property
    def first_limit_s(self) -> float:
        """Limit of silence in the first steps of the current generation, 0 while none is known."""
        if not self._earlier_s:
            return 0.0
        config = self._config
        limit_s = max(config.first_floor_s, config.silence_factor * self._earlier_s)
        return min(limit_s, config.suspended_limit_s)
