"""A rank that computes slower than others of the same work is named live, and nobody else is."""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.flight_record import WAITING
from headway.common.node.testing import wait_until
from headway.common.plan.collectives import GroupKind
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.messages.health import AgentBeat, Finding, Verdict, WorkerSignals
from headway.common.wire.messages.summaries import GroupSum, StepSum, StepSummary
from headway.health.config import HealthConfig
from headway.health.detectors.slow import KEPT_EARLIER, _median_without
from headway.health.diagnosis.of_verdict import diagnosis_of
from headway.health.responses import response
from headway.health.sources.flight import COMPUTE_STEPS, FlightSource
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID

Times = Callable[[int, int], float]
"""Step and rank -> seconds of its passes."""
PP2_DP2 = Grid(pp=2, dp=2)
SLOW_FROM = 40
WITHIN = 20


@dataclass
class Training:
    """Ranks that make steps together, two on a node, as the monitor is told of them."""

    grid: Grid | None
    state: MonitorState
    generation: int = 0
    step: int = -1
    now_s: float = 0.0
    told: list[tuple[int, Verdict]] = field(default_factory=list)
    """Each verdict with the step at which it came."""
    _recent: dict[int, deque[float]] = field(default_factory=dict)
    _made: int = 0

    def run(self, steps: int, times: Times, num_ranks: int = 0) -> Training:
        """Make steps of a second each, with two beats of every node in each."""
        num_ranks = num_ranks or (self.grid.world_size if self.grid else 1)
        for _ in range(steps):
            self.step, self._made = self.step + 1, self._made + 1
            for rank in range(num_ranks):
                recent = self._recent.setdefault(rank, deque(maxlen=COMPUTE_STEPS))
                recent.append(times(self.step, rank))
            for _ in range(2):
                self.now_s += 0.5
                for node in range((num_ranks + 1) // 2):
                    ranks = [rank for rank in (2 * node, 2 * node + 1) if rank < num_ranks]
                    self._note(self.state.on_beat(self._beat(node, ranks), self.now_s))
                self._note(self.state.tick(self.now_s))
        return self

    def find(self, node: int, found: Finding) -> Training:
        """One more beat of a node, with a finding."""
        self.now_s += 0.5
        ranks = [2 * node, 2 * node + 1]
        beat = msgspec.structs.replace(self._beat(node, ranks), findings=(found,))
        self._note(self.state.on_beat(beat, self.now_s))
        return self

    def begin_generation(self) -> None:
        self.generation, self._made = self.generation + 1, 0
        self._recent.clear()

    def restart_monitor(self) -> None:
        written = [verdict for _, verdict in self.told]
        self.state = MonitorState(self.state.config, RUN_ID, grid=self.grid)
        self.state.restore(written)

    def findings(self) -> list[tuple[int, int, str]]:
        """Step, rank and sentence of each verdict; empty for one that only ended."""
        return [(step, one.rank, _finding(one)) for step, one in self.told]

    def _note(self, verdicts: list[Verdict]) -> None:
        self.told += [(self.step, one) for one in verdicts]

    def _beat(self, node: int, ranks: list[int]) -> AgentBeat:
        workers = tuple(
            WorkerSignals(
                rank=rank, pid=1000 + rank, start_ticks=1, state="S", generation=self.generation,
                head=100 * self.step, step=self.step, step_s=1.0, num_steps=self._made,
                median_step_s=1.0, age_s=0.1, compute_s=statistics.median(self._recent[rank]),
            )
            for rank in ranks
        )  # fmt: skip
        sequence = round(self.now_s * 2)
        return AgentBeat(
            run_id=RUN_ID, node=node, pid=1, start_ticks=1, sequence=sequence,
            workers=workers,
        )  # fmt: skip


def _finding(verdict: Verdict) -> str:
    rows = [row.value for row in verdict.evidence if row.name == "finding"]
    return rows[-1] if verdict.is_open or len(rows) > 1 else ""


def training(grid: Grid | None) -> Training:
    return Training(grid, MonitorState(HealthConfig(), RUN_ID, grid=grid))


def by_stage(step: int, rank: int) -> float:
    """Healthy ranks of two stages: the second does half as much again."""
    del step
    return 0.2 if rank < 2 else 0.3


def slow(rank: int, factor: float, until: int = 10_000, usual: Times = by_stage) -> Times:
    def times(step: int, one: int) -> float:
        is_slow = one == rank and SLOW_FROM <= step < until
        return usual(step, one) * (factor if is_slow else 1.0)

    return times


@pytest.mark.parametrize("rank", range(4))
def test_a_slow_rank_is_named_within_twenty_steps_and_so_is_its_end(rank: int) -> None:
    run = training(PP2_DP2).run(120, slow(rank, 2.9, until=80))
    (step, named, said), (ended, _, over) = run.findings()
    assert SLOW_FROM < step <= SLOW_FROM + WITHIN and named == rank
    assert said == f"rank {rank} computes 2.9x its peers since step 40 (node {rank // 2})"
    assert 80 < ended <= 80 + WITHIN
    assert over == f"rank {rank} is as fast as its peers again (node {rank // 2})"
    verdict = run.told[0][1]
    assert (verdict.kind, verdict.node, response(verdict)) == ("slow_rank", rank // 2, "observe")


def test_all_replicas_of_a_stage_that_are_slow_together_are_named() -> None:
    def times(step: int, rank: int) -> float:
        return by_stage(step, rank) * (3.0 if rank < 2 and SLOW_FROM <= step < 80 else 1.0)

    findings = training(PP2_DP2).run(120, times).findings()
    named = {rank: (step, said) for step, rank, said in findings if "computes" in said}
    assert set(named) == {0, 1}
    for rank, (step, said) in named.items():
        assert SLOW_FROM < step <= SLOW_FROM + WITHIN
        assert said == f"rank {rank} computes 3.0x its earlier time since step 40 (node 0)"
    over = [(step, rank) for step, rank, said in findings if "again" in said]
    assert len(over) == 2 and all(80 < step <= 80 + WITHIN for step, _ in over)


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("factor", [1.9, 2.2, 3.0, 8.0])
def test_a_busy_machine_after_a_slow_rank_names_nobody_else(rank: int, factor: float) -> None:
    """What ranks of the other stage took beside a slow one is not what they usually take."""
    only_rank = slow(rank, factor, until=160)

    def times(step: int, one: int) -> float:
        return only_rank(step, one) * (2.0 if step >= 190 else 1.0)

    findings = training(PP2_DP2).run(250, times).findings()
    assert {one for _, one, _ in findings} == ({rank} if factor > 2.0 else set())


def test_a_rank_that_is_slow_from_its_start_spoils_no_first_share() -> None:
    def times(step: int, rank: int) -> float:
        return by_stage(step, rank) * (4.0 if rank == 1 and step < 80 else 1.0 + (step >= 90))

    assert {rank for _, rank, _ in training(PP2_DP2).run(150, times).findings()} == {1}


def test_replicas_that_are_slow_together_are_named_after_one_of_another_stage_was() -> None:
    def times(step: int, rank: int) -> float:
        together = 3.0 if rank >= 2 and step >= 190 else 1.0
        return slow(1, 3.0, until=160)(step, rank) * together

    named = [rank for _, rank, said in training(PP2_DP2).run(250, times).findings() if "x" in said]
    assert sorted(named) == [1, 2, 3]


def test_a_rank_that_is_slow_most_of_the_time_is_named_too() -> None:
    def times(step: int, rank: int) -> float:
        return by_stage(step, rank) * (4.0 if rank == 1 and step % 4 and step >= SLOW_FROM else 1.0)

    (only,) = training(PP2_DP2).run(100, times).findings()
    assert only[0] <= SLOW_FROM + WITHIN and only[1] == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_busy_machine_is_no_slow_rank(seed: int) -> None:
    """Steps that vary by half, pauses of a rank up to twenty times as long, and hours of load."""
    rng = random.Random(seed)

    def times(step: int, rank: int) -> float:
        load = 1.0 + 4.0 * (step // 100 % 2)
        pause = 20.0 if rng.random() < 0.05 else 1.0
        return by_stage(step, rank) * load * rng.uniform(0.7, 1.3) * pause

    assert training(PP2_DP2).run(1500, times).told == []


def test_steps_too_short_to_compare_name_nobody() -> None:
    times = (0.01, 0.03, 0.01, 0.01)
    assert training(PP2_DP2).run(100, lambda _, rank: times[rank]).told == []


def test_stages_of_different_work_are_not_compared() -> None:
    times = (0.1, 0.1, 0.9, 0.9)
    for grid in (PP2_DP2, Grid(pp=4)):
        assert training(grid).run(100, lambda _, rank: times[rank]).told == []


def test_without_replicas_a_rank_is_held_against_its_own_earlier_time() -> None:
    run = training(Grid(pp=4)).run(SLOW_FROM + 60, slow(2, 2.5, until=SLOW_FROM + 30))
    (step, rank, said), (_, _, over) = run.findings()
    assert step <= SLOW_FROM + WITHIN and rank == 2
    assert said == "rank 2 computes 2.5x its earlier time since step 40 (node 1)"
    assert over == "rank 2 is as fast as before again (node 1)"


@pytest.mark.parametrize("grid", [Grid(pp=4), PP2_DP2, Grid()])
def test_what_slows_all_ranks_names_none(grid: Grid) -> None:
    def times(step: int, rank: int) -> float:
        return by_stage(step, rank) * (1.0 if step < SLOW_FROM else 2.5)

    assert training(grid).run(120, times).told == []


def test_tensor_parallel_ranks_that_wait_for_each_other_are_judged_as_one() -> None:
    def times(step: int, rank: int) -> float:
        return 0.8 if rank in (2, 3) and step >= SLOW_FROM else 0.2

    ((step, rank, said),) = training(Grid(tp=2, dp=2)).run(80, times).findings()
    assert step <= SLOW_FROM + WITHIN and rank == -1, "which of the two is not known"
    assert said.startswith("ranks 2 to 3, one of which slows the others, compute 4.0x their peers")


def test_a_recovery_measures_anew() -> None:
    run = training(PP2_DP2).run(70, slow(1, 3.0))
    run.begin_generation()
    run.run(40, by_stage)
    (_, rank, said), (_, _, ended) = run.findings()
    assert (rank, said[:15], ended) == (1, "rank 1 computes", "")
    assert run.state.open_verdicts() == []


def test_a_restarted_monitor_neither_repeats_it_nor_misses_its_end() -> None:
    run = training(PP2_DP2).run(70, slow(1, 3.0))
    run.restart_monitor()
    run.run(20, slow(1, 3.0))
    assert len(run.told) == 1
    run.run(30, by_stage)
    assert [one.is_open for _, one in run.told] == [True, False]


def test_without_a_grid_nobody_is_a_peer() -> None:
    run = training(None).run(100, slow(0, 2.5), num_ranks=2)
    ((_, rank, said),) = run.findings()
    assert rank == 0 and "its earlier time" in said


def test_the_time_of_a_step_is_that_of_its_passes_alone(tmp_path: Path) -> None:
    """Not what it waits for others, nor the passes of an evaluation before it."""
    writer = FlightWriter.create(tmp_path / "flight-1.bin", 1, capacity=256)
    source = FlightSource(tmp_path)
    for step in range(3):
        with writer.record(Kind.EVAL), writer.record(Kind.FORWARD, step=step):
            _spend(0.02)
        with writer.record(Kind.STEP, step=step):
            for kind, flags, seconds in (
                (Kind.FORWARD, 0, 0.01),
                (Kind.BACKWARD_INPUT, 0, 0.01),
                (Kind.RECV_FORWARD, WAITING, 0.05),
                (Kind.SEND_BACKWARD, 0, 0.05),
                (Kind.NORM, 0, 0.05),
            ):
                with writer.record(kind, step=step, flags=flags):
                    _spend(seconds)
        if step == 0:
            source.read()
    (one,) = source.read()
    records = FlightReader(tmp_path / "flight-1.bin").snapshot()
    passes = {int(Kind.FORWARD), int(Kind.BACKWARD_INPUT)}
    inside = [
        sum(
            int(row["end_ns"] - row["start_ns"])
            for row in records
            if row["kind"] in passes and begun <= row["start_ns"] < ended
        )
        / 1e9
        for begun, ended in ((row["start_ns"], row["end_ns"]) for row in records if _is_step(row))
    ]
    assert one.compute_s == pytest.approx(statistics.median(inside)) and len(inside) == 3
    writer.set_generation(1)
    assert source.read()[0].compute_s == 0.0, "another generation is measured anew"
    source.close()
    writer.close()


def _is_step(row: Any) -> bool:
    return bool(row["kind"] == Kind.STEP)


def _spend(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until)


def test_one_of_many_replicas_is_found_without_comparing_all_pairs() -> None:
    """Also where the run has thousands of replicas: the median is taken once per stage."""
    rng = random.Random(0)
    for _ in range(200):
        values = sorted(rng.choice((0.1, 0.2, 0.3)) for _ in range(rng.randint(2, 9)))
        one = rng.choice(values)
        others = list(values)
        others.remove(one)
        assert _median_without(values, one) == pytest.approx(statistics.median(others))
    assert _median_without([0.1], 0.1) is None
    run = training(Grid(dp=64)).run(60, slow(17, 3.0, usual=lambda _, rank: 0.2 + rank / 1000))
    assert [(rank, step <= SLOW_FROM + WITHIN) for step, rank, _ in run.findings()] == [(17, True)]


def test_a_look_takes_the_median_of_a_stage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per replica, 12,288 of them took a second per look."""
    run = training(Grid(pp=2, dp=32)).run(20, by_stage)
    counted: list[int] = []
    taken = statistics.median

    def median(values: Any) -> float:
        counted.append(len(values))
        return taken(values)

    monkeypatch.setattr(statistics, "median", median)
    run.run(2, by_stage)
    assert sum(length > KEPT_EARLIER for length in counted) == 2 * 2, "of both stages, in two looks"


def test_a_slow_rank_states_its_cause_and_its_first_slow_step() -> None:
    run = training(PP2_DP2).run(SLOW_FROM + WITHIN, slow(1, 3.0))
    [(_, verdict)] = run.told
    facts = {one.name: one.value for one in verdict.evidence}
    found = diagnosis_of(verdict)
    assert (found.kind, found.cause) == ("slow", "compute")
    assert found.since_step == int(facts["since_step"])
    assert abs(found.since_step - SLOW_FROM) <= COMPUTE_STEPS


@pytest.mark.parametrize("is_before", [True, False])
def test_a_finding_of_its_node_says_why_a_rank_is_slow(is_before: bool) -> None:
    run = training(PP2_DP2).run(SLOW_FROM, by_stage)
    hot = Finding(
        rule="tcp_retransmits", source="net", file="/proc/net/snmp", offset=1,
        line="12 % of the segments were sent again",
    )  # fmt: skip
    if is_before:
        run.find(0, hot).run(WITHIN, slow(1, 3.0))
    else:
        run.run(WITHIN, slow(1, 3.0)).find(0, hot).run(2, slow(1, 3.0))
    verdict = [one for _, one in run.told if one.kind == "slow_rank"][-1]
    found = diagnosis_of(verdict)
    assert found.cause == "network"
    assert found.confidence == 0.9
    assert "because: 12 % of the segments were sent again" in found.why


def test_the_member_that_its_tensor_parallel_group_waits_for_is_named() -> None:
    grid = Grid(tp=2, dp=2)
    run = training(grid)
    for rank, wait_us in ((0, 90_000), (1, 1_000)):
        group = GroupSum(2 * GroupKind.TP, 0, 4, wait_us, 0, 0, 0)
        step = StepSum(rank, 0, 16, 1, 0, 400_000, 300_000, 0, 0, 0, 0, 0, (group,))
        run.state.on_steps(
            StepSummary(run_id=RUN_ID, node=0, pid=1, boot_id="b", sequence=1, num_dropped=0,
                        steps=(step,))
        )  # fmt: skip

    def times(step: int, rank: int) -> float:
        return 0.6 if rank < 2 and step >= SLOW_FROM else 0.2

    run.run(SLOW_FROM + WITHIN, times)
    [(_, verdict)] = run.told
    assert verdict.rank == 1
