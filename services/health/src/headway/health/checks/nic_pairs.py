"""Checks that every NIC of the machine carries bytes to every other one.

The kernel passes what goes from one address of a machine to another through memory, unless the
addresses are in network namespaces of their own; see ``nic_loopback``.
"""

from __future__ import annotations

import itertools

from headway.health.checks.base import MIB, CheckSettings, Finding, not_run
from headway.health.checks.nic_loopback import judge
from headway.health.measure.nics import nics
from headway.health.measure.streams import best_transfer

NUM_BYTES = 32 * MIB


def check(settings: CheckSettings) -> Finding:
    """Measure each ordered pair, then name what explains the slow ones."""
    found = nics()
    if len(found) < 2:
        return not_run(f"this machine has {len(found)} network interfaces that are up, not several")
    pairs = itertools.permutations(found.items(), 2)
    mesh = {(a, b): best_transfer(NUM_BYTES, from_, to) for (a, from_), (b, to) in pairs}
    return judge([mesh], settings, "from NIC to NIC")
