"""The predicted bytes of a run's training step over each kind of link, for ``--dry-run``."""

from __future__ import annotations

from headway.common.output import Table
from headway.common.plan.placement import Placement
from headway.common.plan.topology import Link, Topology
from headway.common.plan.traffic import bytes_by_link, step_traffic
from headway.trainer.config import RunConfig
from headway.trainer.config.memory import memory_shape

NAMES = {Link.NVLINK: "in nodes (NVLink)", Link.LEAF: "leaf (ToR)", Link.SPINE: "spine"}


def traffic_table(config: RunConfig) -> dict[str, dict[str, int]]:
    """Bytes per step, of all ranks together, by use and link; ``auto`` must be resolved.

    The nodes are below one switch: the network is not known before machines are allocated.
    """
    placement = Placement(config.parallel.grid, config.launch.ranks_per_node)
    network = Topology.one_switch(placement.num_nodes)
    found = bytes_by_link(step_traffic(memory_shape(config)), placement, network)
    return {
        use: {link.name.lower(): nbytes for link, nbytes in by_link.items()}
        for use, by_link in found.items()
    }


def traffic_report(config: RunConfig) -> list[str]:
    """Lines for ``--dry-run``: ``traffic_table`` for people, nothing for a run of one rank."""
    found = {use: list(row.values()) for use, row in traffic_table(config).items()}
    if not found:
        return []
    found["total"] = [sum(column) for column in zip(*found.values(), strict=True)]
    unit, nbytes = ("GiB", 2**30) if sum(found["total"]) >= 100 << 30 else ("MiB", 2**20)
    rows = [[use, *(round(n / nbytes, 1) for n in row)] for use, row in found.items()]
    header = [f"{unit} per step", *NAMES.values()]
    head = "predicted traffic of all ranks together, with the nodes below one switch:"
    return [head, *Table(rows, header).lines()]
