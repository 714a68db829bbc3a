"""A bucket's parameters are gathered for the next step behind its own update, and only once."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from headway.common.config import from_dict
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.testkit.trainer.layouts import GRIDS, small_run
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.optim.adamw import AdamW
from headway.trainer.parallel.data import DataParallel
from headway.trainer.session.hooks import Directive, StepHooks, StepResult
from headway.trainer.session.session import Session
from headway.trainer.state.snapshot import Snapshots

pytestmark = pytest.mark.usefixtures("one_thread")
BUCKETS = 3
Event = tuple[str, int]
GATHERS = [("gather", bucket) for bucket in range(BUCKETS)]
UPDATES = [("update", bucket) for bucket in range(BUCKETS)]
LOCK = ("lock", 0)
"""Of the slots of snapshots, which on a GPU waits until nothing runs, gathers included."""
AHEAD = [LOCK, *(event for pair in zip(UPDATES, GATHERS, strict=True) for event in pair)]


def _config(grid: str = "", **parallel: Any) -> RunConfig:
    degrees = GRIDS.get(grid, {})
    world = degrees.get("dp", 1)
    degrees = {**degrees, "buckets": BUCKETS, **parallel}
    settings = small_run("fp32", parallel=degrees, world_size=world)
    settings["train"] |= {"steps": 6, "eval_every": 0}
    return from_dict(RunConfig, settings)


class _Steps(StepHooks):
    """Notes the end of each step; ``bad`` has a weight that is not a number, ``pause`` a pause."""

    def __init__(self, session: Session, events: list[Event], bad: int, pause: int) -> None:
        self._session, self._events = session, events
        self._bad, self._pause, self._rounds = bad, pause, 0
        self._good = 0.0

    def on_step(self, result: StepResult) -> None:
        self._events.append(("step", result.step))
        assert result.skipped == (result.step == self._bad)
        master, params = self._session.flats[0].master, self._session.flats[0].params
        if result.step == self._bad - 1:
            self._good, master[7], params[7] = float(master[7]), float("nan"), float("nan")
        if result.step == self._bad:
            master[7] = params[7] = self._good

    def apply(self, step: int, applied: int, agreed: int) -> Directive:
        del applied, agreed
        self._rounds += step == self._pause
        return Directive(pause=0 < self._rounds < 4 and step == self._pause)

    def on_pause(self, paused: bool) -> None:
        self._events.append(("pause", int(paused)))


def _events(
    monkeypatch: pytest.MonkeyPatch, config: RunConfig, *, bad: int = -1, pause: int = -1
) -> list[Event]:
    """What one rank does: which bucket it updates and gathers, and when steps end."""
    session, events = Session(config, 0, data_factory=synthetic(config, 0)), list[Event]()
    issue, update = DataParallel._issue_gather, AdamW._update

    def gathers(self: DataParallel, bucket: int) -> None:
        events.append(("gather", bucket))
        issue(self, bucket)

    def updates(self: AdamW, flat: Any, *rest: Any) -> None:
        events.append(("update", next(n for n, one in enumerate(session.flats) if one is flat)))
        update(self, flat, *rest)

    monkeypatch.setattr(DataParallel, "_issue_gather", gathers)
    monkeypatch.setattr(AdamW, "_update", updates)
    session.join(Groups.alone())
    session.load("init")
    monkeypatch.setattr(Snapshots, "lock", lambda _: events.append(LOCK))
    session.run(_Steps(session, events, bad, pause), 5)
    session.leave()
    return [event for event, _ in groupby(events)]  # an update takes a bucket block by block


def test_each_gather_follows_its_own_buckets_update(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(GATHERS)
    for step in range(5):
        expected += [*AHEAD, ("step", step)]
    assert _events(monkeypatch, _config()) == expected


def test_without_overlap_each_step_begins_with_its_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list[Event]()
    for step in range(5):
        expected += [*GATHERS, LOCK, *UPDATES, ("step", step)]
    assert _events(monkeypatch, _config(overlap_param_gather=False)) == expected


def test_a_skipped_step_gathers_nothing_and_the_next_one_begins_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = _events(monkeypatch, _config(), bad=2)
    begin = found.index(("step", 1)) + 1
    assert found[begin : found.index(("step", 3))] == [("step", 2), *GATHERS, *AHEAD]


def test_a_pause_waits_for_the_gathers_and_repeats_none(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = list[Event]()
    settle = DataParallel.settle

    def settles(self: DataParallel, step: int) -> None:
        waited.append(("pending", len(self._gathers)))
        settle(self, step)
        assert not self._gathers

    monkeypatch.setattr(DataParallel, "settle", settles)
    found = _events(monkeypatch, _config(), pause=3)
    begin = found.index(("step", 2)) + 1
    paused = [("pause", 1), ("pause", 0)]
    assert found[begin : begin + 10] == [*AHEAD, ("step", 3), *paused]
    assert found[begin + 10 :] == [*AHEAD, ("step", 4)]
    assert waited == [("pending", BUCKETS)] * 2, "before the pause, and at the end"


@pytest.mark.parametrize("grid", ["dp2", "dp4"])
def test_numbers_and_parameters_are_the_same_either_way(grid: str) -> None:
    def train(*, ahead: bool) -> list[Any]:
        config = _config(grid, overlap_param_gather=ahead)

        def member(groups: Groups) -> Any:
            rank = groups.every_rank.rank
            session = Session(config, rank, data_factory=synthetic(config, rank))
            steps = _Numbers()
            session.join(groups)
            session.load("init")
            session.run(steps)
            session.leave()
            return steps.numbers, [flat.params.tolist() for flat in session.flats]

        return over_gloo(config.parallel.grid, member)

    found = train(ahead=True)
    assert found == train(ahead=False)
    assert all(params == found[0][1] for _, params in found), "replicas are equal"


class _Numbers(StepHooks):
    """Keeps the exact numbers of steps and evaluations."""

    def __init__(self) -> None:
        self.numbers: list[tuple[str, str]] = []

    def on_step(self, result: StepResult) -> None:
        self.numbers.append((result.loss.hex(), result.grad_norm.hex()))

    def on_eval(self, step: int, loss: float, sequence: int = 0) -> None:
        del sequence
        self.numbers.append((str(step), loss.hex()))
