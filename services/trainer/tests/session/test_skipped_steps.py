"""Steps that are not finite: counted in a row, ended by name, and never the
source of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.client import newest
from headway.common.config import from_dict
from headway.common.errors import ConfigError
from headway.common.node.arena import Arena
from headway.testkit.checkpoint_ranks import ranks, save_all
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.sessions import arena_at
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig, TrainConfig
from headway.trainer.errors import DivergedError, RefusedError
from headway.trainer.session.hooks import Directive, StepHooks, StepResult
from headway.trainer.session.session import Session
from headway.trainer.worker.control_hooks import ControlHooks

pytestmark = pytest.mark.usefixtures("one_thread")


def _config(*, limit: int = 0, **ckpt: int) -> RunConfig:
    settings = small_run("fp32", world_size=1)
    settings["train"] |= {"max_skipped_steps": limit}
    settings["ckpt"] = {"durable_every": 1000, **ckpt}
    return from_dict(RunConfig, settings)


class _Store(StepHooks):
    """Spoils and heals the state between steps, and takes marked snapshots as a store does."""

    def __init__(self, session: Session, folder: Path, *, bad: range, ask_at: int = -1) -> None:
        self.session, self.path, self.bad, self.ask_at = (
            session,
            folder / "arena-0.bin",
            bad,
            ask_at,
        )
        self.results: list[StepResult] = []
        self.stored: list[int] = []
        self.doubtful: list[tuple[int, int]] = []
        self.doubted: dict[int, bool] = {}
        self.pause_at = -1
        self.num_waits = 0
        self._good = 0.0

    def command_seq(self) -> int:
        return int(0 <= self.ask_at < len(self.results))

    def apply(self, step: int, applied: int, agreed: int) -> Directive:
        if step + 1 >= self.pause_at > 0:
            self.num_waits += 1
            return Directive(pause=True, stop=self.num_waits > 2)
        return Directive(checkpoint=agreed > applied)

    def on_doubtful_checkpoint(self, step: int, first_skipped: int) -> None:
        self.doubtful.append((step, first_skipped))

    def on_step(self, result: StepResult) -> None:
        self.results.append(result)
        master, params = self.session.flats[0].master, self.session.flats[0].params
        if result.step + 1 == self.bad.start:
            self._good = float(master[7])
            master[7] = params[7] = float("nan")
        if result.step + 1 == self.bad.stop:
            master[7] = params[7] = self._good
        self.take()

    def take(self) -> None:
        with Arena.open(self.path) as arena:
            for info in arena.sealed():
                if info.step <= arena.committed:
                    self.doubted[info.step] = info.doubtful or self.doubted.get(info.step, False)
            for info in arena.wanted():
                self.stored.append(info.step)
                arena.release(info)


def _session(config: RunConfig, folder: Path) -> Session:
    return Session(
        config,
        0,
        data_factory=synthetic(config, 0),
        open_arena=arena_at(folder / "arena-0.bin"),
    )


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., _Store]:
    """A session at step 0, its hooks watching it."""

    def make(config: RunConfig, **options: Any) -> _Store:
        session = _session(config, tmp_path)
        session.join(Groups.alone(1))
        session.load("init")
        return _Store(session, tmp_path, **options)

    return make


def test_so_many_skipped_steps_in_a_row_end_the_run_by_name(start: Callable[..., _Store]) -> None:
    store = start(_config(limit=3), bad=range(2, 99))
    with pytest.raises(DivergedError) as caught:
        store.session.run(store, 20)
    store.session.leave()
    assert [result.skipped_in_row for result in store.results] == [0, 0, 1, 2, 3]
    assert isinstance(caught.value, RefusedError), "a worker ends the run with such an error"
    text = str(caught.value.with_way_back("the newest is of step 1"))
    for part in (
        "3 steps in a row were skipped, 2 to 4",
        "loss nan",
        "lower optim.lr",
        "before step 2 (the newest is of step 1)",
        "train.max_skipped_steps",
    ):
        assert part in text


def test_single_skipped_steps_do_not_add_up(start: Callable[..., _Store]) -> None:
    store = start(_config(limit=2), bad=range(2, 3))
    store.session.run(store, 5)
    store.take()
    store.bad = range(6, 7)
    store.session.run(store, 8)
    store.session.leave()
    assert [r.step for r in store.results if r.skipped] == [2, 6]


def test_zero_never_ends_the_run(start: Callable[..., _Store]) -> None:
    store = start(_config(limit=0), bad=range(2, 99))
    store.session.run(store, 16)
    store.session.leave()
    assert store.results[-1].skipped_in_row == 14
    with pytest.raises(ConfigError, match="max_skipped_steps=-1"):
        TrainConfig(max_skipped_steps=-1)


def test_the_count_in_a_row_survives_a_recovery(
    start: Callable[..., _Store], tmp_path: Path
) -> None:
    config = _config(limit=4)
    store = start(config, bad=range(2, 99))
    store.session.run(store, 5)
    store.session.leave()
    again = _session(config, tmp_path)
    again.join(Groups.alone(2))
    again.load("arena", 5)
    after = _Store(again, tmp_path, bad=range(99, 100))
    with pytest.raises(DivergedError, match="2 to 5"):
        again.run(after, 20)
    again.leave()
    assert [result.skipped_in_row for result in after.results] == [4]


def test_a_state_whose_own_step_is_not_finite_is_withdrawn_and_the_next_good_one_is_stored(
    start: Callable[..., _Store],
) -> None:
    """State 4 is marked when step 3 ends; only step 4 shows that it is bad."""
    store = start(_config(durable_every=2), bad=range(4, 9))
    store.session.run(store, 11)
    store.session.leave()
    store.take()
    assert [r.step for r in store.results if r.skipped] == [4, 5, 6, 7, 8]
    assert store.stored == [2, 10, 11], "10 is the first state after a good step"


def test_the_end_of_a_run_stores_no_state_that_is_not_finite(
    start: Callable[..., _Store],
) -> None:
    store = start(_config(durable_every=2), bad=range(4, 99))
    store.session.run(store, 9)
    store.session.leave()
    store.take()
    assert store.stored == [2]
    assert not store.session.is_last_wanted


def test_a_store_that_looks_by_itself_finds_the_states_that_are_not_finite_doubtful(
    start: Callable[..., _Store],
) -> None:
    store = start(_config(durable_every=1000), bad=range(4, 7))
    store.session.run(store, 10)
    store.session.leave()
    store.take()
    doubted = [step for step, is_doubtful in store.doubted.items() if is_doubtful]
    assert [r.step for r in store.results if r.skipped] == doubted == [4, 5, 6]


def test_a_state_that_is_ruined_before_a_pause_is_doubtful(start: Callable[..., _Store]) -> None:
    """No step has used it when the run is paused, and no mark asks for a look."""
    store = start(_config(durable_every=1000), bad=range(3, 99))
    store.pause_at = 3
    store.session.run(store, 9)
    store.take()
    store.session.leave()
    assert (store.doubted[2], store.doubted[3]) == (False, True)


def test_a_last_update_that_ruins_the_state_is_not_stored(start: Callable[..., _Store]) -> None:
    """No step uses the last state, so its numbers are looked at."""
    store = start(_config(durable_every=3), bad=range(5, 99))
    store.session.run(store, 5)
    store.session.leave()
    store.take()
    assert not any(result.skipped for result in store.results)
    assert store.stored == [3]
    assert not store.session.is_last_wanted


def test_a_checkpoint_that_is_asked_for_while_steps_are_skipped_is_made(
    start: Callable[..., _Store],
) -> None:
    store = start(_config(durable_every=2), bad=range(4, 99), ask_at=6)
    store.session.run(store, 12)
    store.session.leave()
    store.take()
    assert store.stored == [2, 8]
    assert store.doubtful == [(8, 4)]


def test_the_checkpoint_before_an_asked_for_one_is_marked_to_be_kept(rank: Any) -> None:
    folder = rank._context.run_dir.checkpoints
    with ranks(folder, world_size=1)[0] as client:
        for step in (3, 6, 9):
            save_all([client], step)
    rank._context.view.rank = 0
    ControlHooks(rank._context, 1).on_doubtful_checkpoint(12, 7)
    assert newest(folder, max_step=6).is_marked
    assert not newest(folder).is_marked and not newest(folder, max_step=3).is_marked
    error = DivergedError(7, 11, float("nan"), 1.0)
    assert "of step 6" in str(error.with_way_back(rank._restore_hint(error.first_step)))
    assert "there is none yet" in str(error.with_way_back(rank._restore_hint(2)))
