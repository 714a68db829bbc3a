"""Where the check of each machine stands, and what the newest ones have found.

A check that more than half of the machines fail says more about what they share, such as a folder
or a limit in the configuration, than about each of them: its failures are doubted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.common.wire.messages.driver import NodeCheck
from headway.controller.decisions.node import CheckState, Node

AGAIN_S = (60.0, 300.0, 900.0)
"""Pauses before a machine that failed is checked again: the first, the second, every later one."""
ROUND_S = 1200.0
"""Failures that lie this far apart are compared: each failed machine is checked again within."""
LEAST_DOUBT = 2
"""Machines that fail a check before it is doubted: one alone is compared with nothing."""
SAME_MACHINE_S = 15.0
"""An executor that reports again within this time runs on the machine that was checked: init
starts it again within seconds, a driver's order to do so needs some 10 s, and no machine boots and
joins in less."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the newest check of a machine has found."""

    at: float
    failed: frozenset[str]


class CheckTable:
    """The checks of a run's machines, all by the driver's own clock."""

    def __init__(self) -> None:
        self.is_on = False
        """Machines are checked before the run relies on them."""
        self.wanted: dict[int, None] = {}
        """Nodes whose check is wanted."""
        self._found: dict[int, Found] = {}

    def want(self, node: Node, now: float) -> None:
        """The machine is to be checked, or checked again; older results do not count."""
        node.check_number, node.check_since = node.check_number + 1, now
        self._set(node, "wanted")

    def is_wanted_first(self, node: Node, now: float) -> bool:
        """Whether a node that could return is to be checked first; then its check is wanted."""
        if not self.is_on or node.ranks or node.check in ("passed", "doubted"):
            return False
        if node.check != "wanted":
            self.want(node, now)
        return True

    # ---- results --------------------------------------------------------------------------------
    def take(self, node: Node, check: NodeCheck | None, now: float) -> bool:
        """Whether the beat has a result that changes something.

        It is that of the newest check, or one from before this driver.
        """
        if check is None or not self.is_on:
            return False
        is_awaited = node.check == "wanted"
        if not is_awaited:
            node.check_number = max(node.check_number, check.number)
            is_lost = node.status == "lost" and node.exclusion != "check"
            if node.check != "none" or node.ranks or is_lost:
                return False
        if not check.is_done or check.number < node.check_number:
            return False
        if check.failed:
            self.fail(node, check.failed, check.reason, now)
            # a driver before has given it up for this
            return is_awaited or node.exclusion != "check"
        self.let_pass(node, check.reason, now)
        return True

    def let_pass(self, node: Node, reason: str, now: float) -> None:
        """The check has passed; or was not applicable for the reason, which proves nothing."""
        self._set(node, "passed")
        node.check_since, node.check_reason = now, reason
        node.failed_checks, node.check_failures = (), 0
        self._found.pop(node.number, None)
        if not reason:
            self._found[node.number] = Found(now, frozenset())

    def fail(self, node: Node, failed: Iterable[str], reason: str, now: float) -> None:
        """The check has failed."""
        self._set(node, "failed")
        node.failed_checks, node.check_reason = tuple(failed), reason
        node.check_since, node.check_failures = now, node.check_failures + 1
        self._found[node.number] = Found(now, frozenset(node.failed_checks))

    def keep_failed(self, node: Node, now: float) -> None:
        """A check that was to be repeated has no result: what the one before found still holds."""
        self._set(node, "failed")
        node.check_since = now

    def doubt(self, node: Node) -> None:
        """The node is used although its check has failed."""
        self._set(node, "doubted")

    def doubted(self, now: float) -> frozenset[str]:
        """Checks that more than half of the machines fail, of all that were or are checked."""
        known = {number: found for number, found in self._found.items() if _is_new(found, now)}
        num_checked = len(known.keys() | self.wanted.keys())
        failing: dict[str, int] = {}
        for found in known.values():
            for name in found.failed:
                failing[name] = failing.get(name, 0) + 1
        return frozenset(
            name
            for name, count in failing.items()
            if count >= LEAST_DOUBT and 2 * count > num_checked
        )

    # ---- again ----------------------------------------------------------------------------------
    def again_in_s(self, node: Node, now: float) -> float:
        """Seconds until a machine that failed is to be checked again, 0 or less if it is due."""
        failures = min(max(1, node.check_failures), len(AGAIN_S))
        return node.check_since + AGAIN_S[failures - 1] - now

    def executor_changed(self, node: Node, silent_s: float, now: float) -> None:
        """Another executor reports: forget the result, unless the machine was in use all along.

        A lost node is checked as one that returns. Otherwise an update or a crash of the executor
        is no sign against its machine, but after a longer silence it may have been repaired, booted
        or replaced.
        """
        if node.check == "wanted":
            node.check_since = now  # the new executor begins it anew
        elif node.status == "lost" or silent_s > SAME_MACHINE_S:
            self.forget(node)

    def forget(self, node: Node) -> None:
        """No result of the node counts any more, also none that is on its way."""
        node.check_number += 1
        self._set(node, "none")
        self._found.pop(node.number, None)

    def _set(self, node: Node, check: CheckState) -> None:
        node.check = check
        if check == "wanted":
            self.wanted[node.number] = None
        else:
            self.wanted.pop(node.number, None)


def _is_new(found: Found, now: float) -> bool:
    """A pass says for good that the check can be passed; a failure is new or was repeated."""
    return not found.failed or now - found.at <= ROUND_S
