"""Orders to nodes and workers, which are sent again until their beats show the effect."""

from __future__ import annotations

from headway.common.decide import Action, AwakeClock
from headway.common.wire.messages.executor import KillWorker, ToWorker
from headway.controller.decisions.events import Send
from headway.controller.decisions.fleet import Fleet

RESEND_S = 0.5
"""An answer takes one beat at most;
to repeat an order sooner would only repeat what is under way."""
Key = tuple[object, ...]
_ROUND: Key = ("round",)


class Orders:
    """When each order of this phase was sent, and what one to a worker holds."""

    def __init__(self, run_id: str, epoch: int, clock: AwakeClock, fleet: Fleet) -> None:
        self._run_id, self._epoch, self._clock, self._fleet = run_id, epoch, clock, fleet
        self._sent: dict[Key, float] = {}

    def clear(self) -> None:
        """Forget what was sent: another phase begins."""
        self._sent.clear()

    # ---- when ---------------------------------------------------------------------------------
    def due(self, *key: object) -> bool:
        """Whether to send this order now, for the first time or again."""
        sent_at = self._sent.get(key)
        if sent_at is not None and self._clock.now - sent_at < RESEND_S:
            return False
        self._sent[key] = self._clock.now
        return True

    def begin_round(self) -> None:
        """Something new must be sent to many workers: look at all of them now."""
        self._sent.pop(_ROUND, None)

    def is_round_due(self) -> bool:
        """Whether to look at all workers again for orders to repeat.

        Between two rounds, each beat has its own node looked at.
        """
        return self.due(*_ROUND)

    # ---- to workers ---------------------------------------------------------------------------
    def order_worker(self, name: str, message: ToWorker | KillWorker) -> Send:
        """Send an order to a worker through its executor."""
        return Send(self._fleet.home[name], message)

    def to_worker(self, name: str, **order: object) -> Send:
        """Send an order of ``ToWorker`` to a worker through its executor."""
        message = ToWorker(run_id=self._run_id, epoch=self._epoch, worker=name, **order)  # type: ignore[arg-type]
        return self.order_worker(name, message)

    def kills(self) -> list[Action]:
        """Have the condemned killed, repeatedly until no beat shows them."""
        return [
            self.order_worker(name, KillWorker(run_id=self._run_id, epoch=self._epoch, worker=name))
            for name in list(self._fleet.marked_for_kill)
            if self.due("kill", name)
        ]
