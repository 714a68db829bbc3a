"""Who holds up a run, in played programs whose halted ranks are known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from headway.common.plan.collectives import AXIS_KINDS, group_id, members
from headway.common.plan.grid import AXES, Grid
from headway.health.diagnosis.positions import Group, Pending, Position, Scene
from headway.health.diagnosis.wait_for import find_holdups

LAYOUTS = [(1, 1, 4), (2, 1, 2), (2, 2, 2), (4, 2, 2), (2, 4, 4), (1, 8, 2)]


@dataclass
class Program:
    """The operations of a run in one order that all ranks follow; each rank has its part of it."""

    groups: dict[str, Group]
    operations: list[str]
    """Group of each."""
    halted: dict[int, int] = field(default_factory=dict)
    """Rank -> index of the operation before which its host or its device stops for good."""

    @classmethod
    def drawn(cls, chance: random.Random, tp: int, pp: int, dp: int) -> Program:
        grid = Grid(tp=tp, pp=pp, dp=dp)
        groups = {}
        for axis in AXES:
            for rank in range(grid.world_size):
                ranks = members(grid, group_id(AXIS_KINDS[axis], rank))
                if len(ranks) > 1:
                    name = f"{axis} {ranks[0]}"
                    groups[name] = Group(name, ranks)
        operations = [chance.choice(sorted(groups)) for _ in range(60 * len(groups))]
        return cls(groups, operations)

    def play(self) -> tuple[dict[int, list[int]], set[int]]:
        """Run until nothing moves: the operations that each rank has entered, and those done."""
        entered: dict[int, list[int]] = {
            rank: [] for group in self.groups.values() for rank in group.members
        }
        blocked: set[int] = set()
        done = set()
        for index, name in enumerate(self.operations):
            ranks = self.groups[name].members
            stopped = {rank for rank, at in self.halted.items() if at <= index} - blocked
            for rank in set(ranks) - stopped - blocked:
                entered[rank].append(index)
            if all(index in entered[rank] for rank in ranks):
                done.add(index)
            else:
                blocked.update(set(ranks) - stopped)
        self.halted = {rank: at for rank, at in self.halted.items() if rank not in blocked}
        return entered, done

    def sequence(self, index: int) -> int:
        return self.operations[: index + 1].count(self.operations[index])


def scene_of_hosts(program: Program) -> tuple[Scene, set[int]]:
    """As on CPUs, and the ranks at fault: those that halted before something others are in."""
    entered, done = program.play()
    positions = {}
    waited_in = set()
    for rank, indices in entered.items():
        position = positions[rank] = Position(rank, is_working=rank in program.halted)
        for index in indices:
            name, sequence = program.operations[index], program.sequence(index)
            position.entered[name] = sequence
            if index in done:
                position.done[name] = sequence
            else:
                position.pending += (Pending(name, sequence),)
                waited_in.add(index)
    missing = {
        rank
        for index in waited_in
        for rank in program.groups[program.operations[index]].members
        if index not in entered[rank] and rank in program.halted
    }
    return Scene(program.groups, positions), missing


def scene_of_devices(program: Program, *, knows_starts: bool) -> tuple[Scene, set[int]]:
    """As on GPUs: every host has queued everything, and the devices have stopped."""
    entered, done = program.play()
    positions = {}
    waited_in = set()
    for rank, begun in entered.items():
        position = Position(rank, runs_ahead=True, knows_starts=knows_starts)
        positions[rank] = position
        for index, name in enumerate(program.operations):
            if rank not in program.groups[name].members:
                continue
            sequence = program.sequence(index)
            position.entered[name] = sequence
            if index in done:
                position.done[name] = sequence
            else:
                has_begun = index in begun
                position.pending += (Pending(name, sequence, has_begun if knows_starts else None),)
                if has_begun:
                    waited_in.add(index)
    missing = {
        rank
        for index in waited_in
        for rank in program.groups[program.operations[index]].members
        if index not in entered[rank] and rank in program.halted
    }
    return Scene(program.groups, positions), missing


def drawn(seed: int) -> Program:
    chance = random.Random(seed)
    program = Program.drawn(chance, *LAYOUTS[seed % len(LAYOUTS)])
    ranks = sorted({rank for group in program.groups.values() for rank in group.members})
    for rank in chance.sample(ranks, 1 + seed % 2):
        program.halted[rank] = chance.randrange(len(program.operations) // 2)
    return program


@pytest.mark.parametrize("seed", range(60))
def test_exactly_the_halted_hosts_are_named(seed: int) -> None:
    scene, expected = scene_of_hosts(drawn(seed))
    found = find_holdups(scene)
    assert {rank for one in found for rank in one.ranks} == expected
    assert {one.kind for one in found} == ({"missing"} if expected else set())


@pytest.mark.parametrize("seed", range(60))
def test_exactly_the_halted_devices_are_named_where_starts_are_known(seed: int) -> None:
    scene, expected = scene_of_devices(drawn(seed), knows_starts=True)
    found = find_holdups(scene)
    assert {rank for one in found for rank in one.ranks} == expected
    assert {one.kind for one in found} == ({"device"} if expected else set())


@pytest.mark.parametrize("seed", range(60))
def test_no_rank_is_named_where_nothing_tells_which_device_has_stopped(seed: int) -> None:
    scene, _ = scene_of_devices(drawn(seed), knows_starts=False)
    assert {one.kind for one in find_holdups(scene)} <= {"transport"}


@pytest.mark.parametrize("seed", range(30))
def test_a_rank_of_which_nothing_is_known_is_what_others_wait_for(seed: int) -> None:
    program = drawn(seed)
    scene, expected = scene_of_hosts(program)
    silent = {rank for rank in expected if rank % 2}
    known = {rank: one for rank, one in scene.positions.items() if rank not in silent}
    found = find_holdups(Scene(scene.groups, known))
    kinds = {rank: one.kind for one in found for rank in one.ranks}
    assert {rank for rank in kinds if kinds[rank] == "missing"} == expected - silent
    assert silent <= {rank for rank in kinds if kinds[rank] == "unreported"}


def test_all_in_one_operation_that_does_not_end_is_the_transports_fault() -> None:
    group = Group("dp 0", (0, 1))
    positions = {
        rank: Position(rank, {"dp 0": 4}, {"dp 0": 3}, (Pending("dp 0", 4),)) for rank in (0, 1)
    }
    [found] = find_holdups(Scene({"dp 0": group}, positions))
    assert (found.kind, found.ranks, found.sequence) == ("transport", (0, 1), 4)


def test_two_ranks_that_wait_for_each_other_in_different_groups_are_a_deadlock() -> None:
    groups = {"a": Group("a", (0, 1, 2)), "b": Group("b", (0, 1))}
    positions = {
        0: Position(0, {"a": 1}, {}, (Pending("a", 1),)),
        1: Position(1, {"b": 1}, {}, (Pending("b", 1),)),
        2: Position(2, {"a": 1}, {}, (Pending("a", 1),)),
    }
    [found] = find_holdups(Scene(groups, positions))
    assert (found.kind, found.ranks) == ("deadlock", (0, 1))


def test_who_has_ended_is_told_from_who_hangs() -> None:
    group = Group("dp 0", (0, 1))
    positions = {
        0: Position(0, {"dp 0": 4}, {"dp 0": 3}, (Pending("dp 0", 4),)),
        1: Position(1, {"dp 0": 3}, {"dp 0": 3}, has_ended=True),
    }
    [found] = find_holdups(Scene({"dp 0": group}, positions))
    assert (found.kind, found.ranks, found.num_waiting) == ("ended", (1,), 1)


def test_a_device_that_has_not_finished_what_others_have_waits_for_nobody() -> None:
    group = Group("tp 0", (0, 1))
    positions = {
        0: Position(0, {"tp 0": 9}, {"tp 0": 5}, (Pending("tp 0", 6),), runs_ahead=True),
        1: Position(1, {"tp 0": 4}, {"tp 0": 3}, (Pending("tp 0", 4),), runs_ahead=True),
    }
    [found] = find_holdups(Scene({"tp 0": group}, positions))
    assert (found.kind, found.ranks, found.sequence) == ("device", (1,), 6)


def test_a_receive_that_was_posted_ahead_is_no_deadlock() -> None:
    groups = {
        "0 to 1": Group("0 to 1", (0, 1), is_message=True),
        "1 to 0": Group("1 to 0", (1, 0), is_message=True),
    }
    positions = {
        0: Position(0, {"0 to 1": 2, "1 to 0": 3}, {"0 to 1": 2, "1 to 0": 2},
                    (Pending("1 to 0", 3),), is_working=True),
        1: Position(1, {"0 to 1": 3, "1 to 0": 2}, {"0 to 1": 2, "1 to 0": 2},
                    (Pending("0 to 1", 3),)),
    }  # fmt: skip
    [found] = find_holdups(Scene(groups, positions))
    assert (found.kind, found.ranks, found.group) == ("missing", (0,), "0 to 1")
