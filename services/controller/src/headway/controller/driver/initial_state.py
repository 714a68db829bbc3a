"""Builds a driver's initial state from the configuration and the journal."""

from __future__ import annotations

import time
from collections.abc import Mapping

from headway.common import installed
from headway.common.plan.nearest import place
from headway.common.plan.placement import Placement
from headway.common.plan.topology import Topology
from headway.common.plan.traffic import step_traffic
from headway.controller.decisions.events import Start
from headway.controller.driver.memory import recall
from headway.controller.journal.journal import Journal
from headway.launch.engine import Replaces
from headway.trainer.config import RunConfig, memory_shape

CHECK_REPORT_S = 30.0
"""Time for the order of a check to arrive and for its result to come back, beside the check."""
NETWORK = "network"
"""The journal's fact with the digest of the topology that ranks were placed on."""
JOIN_GRACE_S = 20.0
"""The first driver of a run waits for its machines while they still start."""


def begin(
    config: RunConfig,
    run_id: str,
    nodes: int,
    epoch: int,
    journal: Journal,
    *,
    topology: Topology | None = None,
    marked: int = -1,
    is_joined: bool = False,
    former: int = -1,
    former_silent_s: float = 0.0,
    replaces: Replaces = "nothing",
) -> Start:
    """Return the start of the driver with number ``epoch``, on ``nodes`` nodes.

    They join the cluster one by one if ``is_joined``; ``former`` and ``replaces`` are as in
    ``Start``. ``marked`` is
    the newest generation that the checkpoints folder knows, which a journal that was damaged may
    not. ``topology``: the network of the nodes, if it is known. It decides which spare takes over
    from a node, and where ranks begin, also when a run is resumed on other machines than those
    whose digest is in the journal as the fact ``NETWORK``; a driver that takes over leaves ranks
    where they are.

    A cluster on this machine may have more nodes than the run was started with: those are not the
    run's, so it neither waits for them nor restarts them.

    Raises:
        SupersededError: a newer driver leads the run.
    """
    journal.lead()  # first: nothing may be added to what is read now
    if not is_joined:
        nodes = min(nodes, config.launch.nodes + config.launch.spares)
    placement = Placement(config.parallel.grid, config.launch.ranks_per_node)
    generation, rank_nodes = journal.last_generation() or (-1, {})
    generation = max(generation, marked)
    is_elsewhere = topology is not None and journal.fact(NETWORK, "") != topology.digest
    if (
        is_elsewhere
        or not is_of_plan(rank_nodes, _by_rank(placement))
        or max(rank_nodes.values()) >= nodes
    ):
        if topology is not None:
            traffic = step_traffic(memory_shape(config))
            placement = place(traffic, config.launch.ranks_per_node, topology)
        rank_nodes = _by_rank(placement)
    return Start(
        run_id=run_id,
        steps=config.train.steps,
        rank_nodes=rank_nodes,
        nodes=nodes,
        generation=generation,
        commands=tuple(journal.commands()),
        epoch=epoch,
        grace_s=JOIN_GRACE_S if is_joined and generation < 0 else 0.0,
        memory=recall(journal),
        source=installed.source(),
        former=former,
        former_silent_s=former_silent_s,
        snapshot_every=1 if config.ckpt.snapshot_every == "auto" else config.ckpt.snapshot_every,
        checks_nodes=config.health.checks_nodes(are_machines=is_joined),
        check_limit_s=config.health.quick_suite_s + CHECK_REPORT_S,
        is_on_gloo=config.train.device == "cpu",
        link_wait_s=0.0 if config.train.device == "cpu" else config.parallel.link_wait_s,
        switches=() if topology is None else topology.switches,
        replaces=replaces,
        unix_s=time.time(),
    )


def is_of_plan(rank_nodes: Mapping[int, int], planned: Mapping[int, int]) -> bool:
    """Whether the same ranks share a node in both; which node that is may have changed.

    Ranks of a node share one data stream, so another ``launch.ranks_per_node`` needs a new
    placement.
    """
    return rank_nodes == planned or _groups(rank_nodes) == _groups(planned)


def _by_rank(placement: Placement) -> dict[int, int]:
    return dict(enumerate(placement.node_by_rank()))


def _groups(rank_nodes: Mapping[int, int]) -> set[frozenset[int]]:
    ranks: dict[int, set[int]] = {}
    for rank, node in rank_nodes.items():
        ranks.setdefault(node, set()).add(rank)
    return {frozenset(group) for group in ranks.values()}
