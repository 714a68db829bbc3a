"""From the clocks of a run's machines to the run's clock, by what the driver found out about each.

The run's clock is that of the journal (``headway.controller.driver.clocks``). Where one machine
carries the run, its clock is the run's, and nothing is added to any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from headway.console.folder.records import RunRecords


@dataclass
class _Boot:
    """Readings of one boot of a machine, in order: since when there were any, and those that count.

    A reading that is more than twice as certain as the one before takes its place; another one
    shows that the clocks have drifted.
    """

    since_unix_s: float
    own_ns: list[int] = field(default_factory=list)
    offset_ns: list[int] = field(default_factory=list)
    uncertainty_ns: list[int] = field(default_factory=list)

    def add(self, offset_ns: int, uncertainty_ns: int, run_s: float) -> None:
        while self.uncertainty_ns and 2 * uncertainty_ns < self.uncertainty_ns[-1]:
            for column in (self.own_ns, self.offset_ns, self.uncertainty_ns):
                column.pop()
        self.own_ns.append(round(run_s * 1e9) - offset_ns)
        self.offset_ns.append(offset_ns)
        self.uncertainty_ns.append(uncertainty_ns)

    def on_run_clock(self, own_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Times of this boot's clock as those of the run's; drift between readings is steady."""
        first = self.offset_ns[0]  # what is left is small enough to be exact as a float
        drift = np.interp(own_ns, self.own_ns, [one - first for one in self.offset_ns])
        return own_ns + first + np.rint(drift).astype(np.int64)


class Clocks:
    """What is known of the nodes' clocks now."""

    def __init__(self, run: RunRecords) -> None:
        self._boots: dict[int, dict[str, _Boot]] = {}
        self._nodes: set[int] = set()
        if not run.folder.bundle.exists():
            return
        for one in run.records.clocks():
            boot = self._boots.setdefault(one.node, {}).setdefault(one.boot_id, _Boot(one.unix_s))
            boot.add(one.offset_ns, one.uncertainty_ns, one.monotonic_s)
        for _, _, rank_nodes in run.records.generations():
            self._nodes.update(rank_nodes.values())

    def uncertainty_ns(self) -> dict[int, int | None]:
        """Node -> how far its newest times may be off either way, or None.

        It has each node that has carried ranks; None means that its clock was never compared, so
        its times are its own. Empty where one machine carries the run.
        """
        return {
            node: list(self._boots[node].values())[-1].uncertainty_ns[-1]
            if node in self._boots
            else None
            for node in sorted(self._nodes)
        }

    def shift(
        self,
        node: int,
        records: npt.NDArray[Any],
        saved_unix_s: float = float("inf"),
        boot_id: str = "",
    ) -> npt.NDArray[Any]:
        """Flight records of a node with their times on the run's clock.

        Args:
            saved_unix_s: when they were saved, which shows the machine's boot that they are of: the
                newest one that was known by then.
            boot_id: that boot, where they say it themselves.
        """
        boot = self._boot(node, saved_unix_s, boot_id)
        if boot is None or not len(records):
            return records
        moved = records.copy()
        for name in ("start_ns", "end_ns"):
            is_known = records[name] > 0  # the end of an open action is 0
            own_ns = records[name][is_known].astype(np.int64)
            moved[name][is_known] = boot.on_run_clock(own_ns).clip(1)
        return moved

    def on_run_clock(
        self, node: int, own_ns: int, saved_unix_s: float = float("inf"), boot_id: str = ""
    ) -> int:
        """One time of a node's clock as that of the run's; arguments as of ``shift``."""
        boot = self._boot(node, saved_unix_s, boot_id)
        return own_ns if boot is None else int(boot.on_run_clock(np.array([own_ns]))[0])

    def times(
        self, node: int, own_ns: npt.NDArray[np.int64], boot_id: str
    ) -> npt.NDArray[np.int64]:
        """Times of one boot of a node as those of the run's clock."""
        boot = self._boot(node, float("inf"), boot_id)
        return own_ns if boot is None else boot.on_run_clock(own_ns)

    def _boot(self, node: int, saved_unix_s: float, boot_id: str) -> _Boot | None:
        boots = self._boots.get(node, {})
        if boot_id in boots or not boots:
            return boots.get(boot_id)
        every = list(boots.values())
        known = [boot for boot in every if boot.since_unix_s <= saved_unix_s]
        return (known or every[:1])[-1]
