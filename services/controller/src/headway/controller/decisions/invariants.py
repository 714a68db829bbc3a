"""What holds after every event, counted again from the beats: for tests."""

from __future__ import annotations

from collections import Counter

from headway.common.wire.messages.driver import RankState
from headway.controller.decisions.core import Core
from headway.controller.decisions.fleet import INSIDE, Fleet
from headway.controller.decisions.members import Members

AFTER_BEGIN = ("joining", "running")


def check(core: Core) -> None:
    """Compare tables and counts with the facts.

    Raises:
        AssertionError: with what does not fit.
    """
    _check_nodes(core, core.fleet)
    _check_workers(core.fleet)
    _check_members(core.fleet, core.members)
    assert core.numbered >= core.generation, (
        f"generation {core.generation} was never numbered, only up to {core.numbered}"
    )
    assert core.members.generation == core.generation, "members count another generation"
    _check_phase(core)


def _check_nodes(core: Core, fleet: Fleet) -> None:
    for number, node in fleet.nodes.items():
        ranks = tuple(rank for rank, home in fleet.rank_nodes.items() if home == number)
        assert node.ranks == ranks, f"node {number} carries {ranks}, its record says {node.ranks}"
        known = ("silent", "lost", "active" if ranks else "spare")
        assert node.status in known, f"node {number} with ranks {ranks} is {node.status}"
        assert (number in fleet.spares) == (node.status == "spare"), f"spares lack node {number}"
        is_unreachable = bool(ranks) and node.status != "active"
        assert (number in fleet.unreachable) == is_unreachable, (
            f"node {number}: unreachable is wrong"
        )
        is_lost = bool(ranks) and node.status == "lost"
        assert (number in fleet.lost_carriers) == is_lost, f"node {number}: lost_carriers is wrong"
        assert (number in fleet.excluded) == bool(node.exclusion), (
            f"node {number}: excluded is wrong"
        )
        assert (number in fleet.checks.wanted) == (node.check == "wanted"), (
            f"node {number}: the checks that are wanted are wrong"
        )
        assert not (node.ranks and node.check == "wanted"), f"node {number} is checked beside ranks"
        is_refused = node.status == "lost" or node.check != "failed"
        assert is_refused, f"node {number} is {node.status} although its check failed"
        order = core.machines.orders.get(number)
        is_asked = order is not None and order.state == "asked"
        assert (node.exclusion == "ordered") == is_asked, f"node {number}: its order is wrong"
        assert not node.exclusion or node.status == "lost", (
            f"node {number} is excluded and {node.status}"
        )


def _check_workers(fleet: Fleet) -> None:
    home = {name: number for number, node in fleet.nodes.items() for name in node.workers}
    assert fleet.home == home, f"index {fleet.home}, beats {home}"
    inside, marked_for_kill = {}, {}
    for name, number in home.items():
        node = fleet.nodes[number]
        if name in node.gone:
            marked_for_kill[name] = number
        elif node.workers[name].status in INSIDE:
            inside[name] = number
        is_old = node.workers[name].generation >= 0 and not node.ranks
        assert not is_old or name in node.gone, f"{name} holds memory on a node without ranks"
    assert fleet.inside == inside, f"inside {fleet.inside}, beats {inside}"
    assert fleet.marked_for_kill == marked_for_kill, (
        f"marked {fleet.marked_for_kill}, beats {marked_for_kill}"
    )


def _check_members(fleet: Fleet, members: Members) -> None:
    rank_of = {worker: rank for rank, worker in members.workers.items()}
    assert len(rank_of) == len(members.workers), f"a worker holds two ranks: {members.workers}"
    assert members.rank_of == rank_of, f"index {members.rank_of}, members {members.workers}"
    statuses: Counter[RankState] = Counter()
    current: Counter[str] = Counter()
    vacant, num_paused = set(), 0
    for rank, home in fleet.rank_nodes.items():
        view = fleet.living(members.workers.get(rank))
        status, is_current, paused = members.counted(view)
        statuses[status] += 1
        current[status] += is_current
        num_paused += paused
        if view is None:
            vacant.add(rank)
        else:
            assert fleet.home[view.worker] == home, (
                f"rank {rank} belongs to node {home}, its worker {view.worker} is on another"
            )
    assert +members.statuses == +statuses, f"counted {members.statuses}, beats {statuses}"
    assert +members.current == +current, f"counted {members.current}, beats {current}"
    assert set(members.vacant) == vacant, f"vacant {members.vacant}, beats {vacant}"
    assert members.num_paused == num_paused, f"paused {members.num_paused}, beats {num_paused}"


def _check_phase(core: Core) -> None:
    assert (core.phase == "over") == bool(core.outcome), f"{core.phase} with {core.outcome!r}"
    if core.phase in AFTER_BEGIN:
        assert not core.members.vacant, f"{core.phase} without ranks {list(core.members.vacant)}"
        lost = [n for n in core.fleet.unreachable if core.fleet.nodes[n].status == "lost"]
        assert not lost, f"{core.phase} on lost nodes {lost}"
    if core.phase == "joining" and core.rollback:
        restored = (core.restore.source, core.restore.step)
        assert restored == ("durable", core.rollback[0]), f"{restored} for {core.rollback}"
    if core.phase == "running":
        assert not core.rollback, f"running with {core.rollback}"
        inside = sum(core.members.current[status] for status in INSIDE)
        assert inside == len(core.fleet.rank_nodes), f"running with {core.members.current}"
    assert core.phase != "beginning" or not core.is_adopting, "beginning before adopting"
