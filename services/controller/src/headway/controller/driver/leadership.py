"""A driver's hold on the run: it fences its predecessor, renews the lease, and gives it up."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.node.process import ProcessId
from headway.common.wire.side_thread import ThreadPerKind
from headway.controller.driver.connections import Connections
from headway.launch.engine import Engine
from headway.launch.lease.base import Holder, LeaseTerm, SupersededError
from headway.launch.lease.choose import lease_of

CUT_OFF_S = 4.0
"""A driver that gets no beats from most nodes for this long lets another node lead."""
CUT_OFF_START_S = 15.0
"""How long a new driver waits for beats of most nodes, which must find it first."""
LATE_S = 1.0
"""A lease that was not renewed for this long is logged; a single renewal may be slow."""

log = get_logger("driver")


class Leadership:
    """Made before the driver acts: when it returns, no former driver is obeyed.

    Args:
        folder: of the lease.
        node: of this driver.
        epoch: that was claimed for it.
        engine: ends a former driver on another machine.
        background: the thread for what may hang with the file system.

    Raises:
        SupersededError: another driver leads the run already.
        HeadwayError: the former driver, on this machine, cannot be ended.
    """

    note: Callable[[str, dict[str, Any]], None]
    """Keeps what happened in the journal; set before ``begin``."""
    stop: Callable[[], None]
    """Ends the driver."""
    former: Holder | None = None
    """The driver before, if it did not leave by itself."""

    def __init__(
        self, folder: Path, node: int, epoch: int, engine: Engine, background: ThreadPerKind
    ) -> None:
        self._node = node
        self._lease = lease_of(folder, self._fence_elsewhere)
        self._epoch, self._engine, self._background = epoch, engine, background
        self._tenure: LeaseTerm | None = None
        self._is_late = self._is_resigning = False
        self._renewed_at = time.monotonic()
        self._fence_former()

    def _fence_former(self) -> None:
        view = self._lease.look()
        if view.claimed > self._epoch:
            raise SupersededError(
                f"epoch {self._epoch} is over: epoch {view.claimed} was claimed",
                remedy="nothing to do: the newer driver leads the run",
            )
        former = view.holder
        if former is None or former.has_resigned:
            return
        self.former = former
        if not self._lease.fence(former):
            raise HeadwayError(
                f"the former driver {former.pid} cannot be ended",
                remedy="end it by hand; until then no other driver may act",
            )

    def _fence_elsewhere(self, former: Holder) -> bool:
        """Kill a former driver on another machine, which may take long.

        Meanwhile it does no harm: executors and the journal reject its epoch, and its checkpoints
        are ignored.
        """

        def then(is_sure: bool | None, _error: Exception | None) -> None:
            if not is_sure:
                fields = {"former_node": former.node, "former_epoch": former.epoch}
                log.warning("the former driver may still run; its orders are refused", **fields)

        if former.node == self._node:  # its machine was rebooted, or is another one now
            return True
        work = partial(self._engine.fence, former.node, self._epoch)
        self._background.submit("end of the former driver", work, then)
        return True

    def silence(self, driver_silent_s: float) -> dict[str, Any]:
        """Which node fell silent with the driver before, and how long ago, as in ``Start``."""
        former = self.former
        if former is None or (former.is_here and former.node == self._node):
            return {}
        silent_s = driver_silent_s + ProcessId.current().age_s()
        return {"former": former.node, "former_silent_s": silent_s}

    def begin(self, me: Holder) -> None:
        """Publish where this driver listens. Raises as ``Lease.publish``."""
        self._tenure = LeaseTerm(self._lease, me)
        self._tenure.renew()
        self._renewed_at = time.monotonic()

    def renew(self) -> None:
        """Show that the driver's loop turns. The writing itself may hang with the file system."""
        if self._tenure is None or self._is_resigning:
            return

        def then(_result: object, error: Exception | None) -> None:
            if isinstance(error, SupersededError):
                log.warning("another driver leads the run; leaving", reason=str(error))
                self.stop()
            elif error is not None:
                self._missed(error)
            else:
                self._renewed()

        self._background.submit("renewal of the lease", self._tenure.renew, then)

    def _missed(self, error: Exception) -> None:
        """Log it once: attempts that fail and those that have not ended yet take turns."""
        if time.monotonic() - self._renewed_at > LATE_S and not self._is_late:
            self._is_late = True
            log.error("the lease cannot be renewed", reason=str(error))

    def _renewed(self) -> None:
        self._renewed_at = time.monotonic()
        if self._is_late:
            self._is_late = False
            log.info("the lease is renewed again")

    def finish(self, outcome: str) -> None:
        """Have the lease say that the run is over, and how it ended."""
        if self._tenure is not None:
            self._tenure.finish(outcome)

    def superseded(self) -> None:
        """Another driver has written the journal."""
        log.warning("another driver has written the journal; leaving", epoch=self._epoch)
        self.stop()

    def resign_if_cut_off(self, lines: Connections) -> None:
        """Resign if most nodes fall silent at once, so that a node that reaches more can lead."""
        if self._tenure is None or self._is_resigning:
            return
        if not lines.is_cut_off(CUT_OFF_S, CUT_OFF_START_S):
            return
        self._is_resigning = True
        self.note("resigned", {"epoch": self._epoch, "reason": "most nodes are silent"})

        def then(_result: object, error: Exception | None) -> None:
            if error is not None:
                log.error("cannot give up the lease", reason=str(error))
            self.stop()

        self._background.submit("resignation", self._tenure.resign, then)
