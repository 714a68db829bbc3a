"""Finds steps whose loss or gradient norm is far above that of the steps before them.

The measure is the running median of the accepted steps, which a few spikes do not move. Loss and
norm are world sums, equal on all ranks bit for bit, and the window is part of every snapshot: so
all ranks decide the same, and a step that is repeated after a recovery is decided as before.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from headway.trainer.config import TrainConfig
from headway.trainer.state.train_state import TrainState


class SpikeGuard:
    """Judges the finite steps of a run by ``train.spike_factor`` and ``train.spike_window``."""

    def __init__(self, config: TrainConfig, state: TrainState) -> None:
        self._config, self._state = config, state

    def spike(self, loss: float, grad_norm: float) -> str:
        """What of a step is a spike, as a clause with value and threshold; "" if nothing is.

        Nothing is before ``spike_window`` steps were accepted.
        """
        if self._config.on_spike == "ignore":
            return ""
        state = self._state
        return self._above("gradient norm", grad_norm, state.recent_norms) or self._above(
            "loss", loss, state.recent_losses
        )

    def accept(self, loss: float, grad_norm: float) -> None:
        """Add a step whose update was made to the window."""
        if self._config.on_spike == "ignore":
            return
        state, size = self._state, self._config.spike_window
        state.recent_losses = (*state.recent_losses, loss)[-size:]
        state.recent_norms = (*state.recent_norms, grad_norm)[-size:]

    def _above(self, what: str, value: float, recent: Sequence[float]) -> str:
        factor, size = self._config.spike_factor, self._config.spike_window
        if len(recent) < size:
            return ""
        limit = factor * statistics.median(recent[-size:])
        if value <= limit:
            return ""
        return (
            f"the {what} {value:.4g} is above {limit:.4g}, train.spike_factor={factor:g} times "
            f"its median over the last {size} accepted steps"
        )
