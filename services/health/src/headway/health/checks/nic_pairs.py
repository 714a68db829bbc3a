"""Checks that every NIC of the machine carries bytes to every other one.

The kernel passes what goes from one address of a machine to another through memory, unless the
addresses are in network namespaces of their own; see ``nic_loopback``.
"""

from __future__ import annotations

from headway.health.checks.base import MIB, CheckSettings, Finding, not_run
from headway.health.checks.nic_loopback import Mesh, confirmed
from headway.health.checks.nic_loopback import judge as judge_ways
from headway.health.measure.nics import nics
from headway.health.measure.streams import Received, best_transfer

NUM_BYTES = 32 * MIB


def check(settings: CheckSettings) -> Finding:
    """Measure each ordered pair, then name what explains the slow ones."""
    found = nics()
    if len(found) < 2:
        return not_run(f"this machine has {len(found)} network interfaces that are up, not several")

    def measure(a: str, b: str) -> Received:
        return best_transfer(NUM_BYTES, found[a], found[b])

    mesh = {a: {b: measure(a, b) for b in found if b != a} for a in found}
    return judge(confirmed(mesh, measure, settings.mesh), settings)


def judge(measured: Mesh, settings: CheckSettings) -> Finding:
    """The finding about what each NIC has sent to each other one."""
    return judge_ways([measured], settings, "from NIC to NIC")
