"""The graph of who waits for whom as data: of played hangs, of folders, of flight rings."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.node.flight import FlightWriter
from headway.common.plan.collectives import Op, memberships
from headway.common.plan.grid import Grid
from headway.health.client import diagnose_folder, waiting_in
from headway.health.diagnosis.waiting import WaitGraph, wait_graph

from services.health.tests.diagnosis.test_wait_for import drawn, scene_of_hosts

CASES = Path(__file__).parents[1] / "folder" / "cases"


def leads_to(graph: WaitGraph, rank: int) -> set[int]:
    """All ranks that a rank waits for, directly or by way of others."""
    seen, new = set[int](), {rank}
    while new:
        inside = {operation for waiter, operation in graph.waits if waiter in new}
        new = {one for operation, one in graph.missing if operation in inside} - seen
        seen |= new
    return seen


@pytest.mark.parametrize("seed", range(12))
def test_every_waiting_rank_leads_to_a_culprit(seed: int) -> None:
    scene, expected = scene_of_hosts(drawn(seed))
    graph = wait_graph(scene, lambda name: f"the {name}")
    assert set(graph.culprits) == expected and graph.num_ranks == len(scene.positions)
    for rank, operation in graph.waits:
        assert " of the " in graph.operations[operation]
        assert leads_to(graph, rank) & expected


def test_a_folder_shows_the_operation_that_its_culprit_never_began() -> None:
    graph = diagnose_folder(CASES / "01_missing_member").waiting()
    assert graph is not None
    assert graph.operations == ("all_reduce 2041 of default_pg",)
    assert graph.missing == ((0, 5),) and {rank for rank, _ in graph.waits} == {*range(8)} - {5}


def test_a_folder_without_dumps_has_no_graph() -> None:
    assert diagnose_folder(CASES / "04_port_flap").waiting() is None


def test_rings_of_a_run_show_who_has_not_entered(tmp_path: Path) -> None:
    grid, writers = Grid(dp=3), []
    for rank in range(3):
        folder = tmp_path / f"n{rank}"
        folder.mkdir()
        writer = FlightWriter.create(folder / f"flight-{rank}.bin", rank, 64)
        writers.append(writer)
        writer.set_generation(0)
        lines = writer.table.begin(0, memberships(grid, rank))
        line = next(one for one in memberships(grid, rank) if one.kind.name == "DP").line
        if rank != 1:
            lines[line].enter(Op.ALL_REDUCE, 8)
            writer.waiting.__enter__()
    graph = waiting_in(sorted(tmp_path.glob("n*")))
    assert graph is not None and graph.culprits == (1,)
    assert "all_reduce 1 of dp group of rank 0" in graph.operations
    for writer in writers:
        writer.close()


def test_without_rings_there_is_no_graph(tmp_path: Path) -> None:
    assert waiting_in([tmp_path]) is None
