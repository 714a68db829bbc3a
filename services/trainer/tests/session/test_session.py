"""One rank's session in this process: steering, durable marks, bad numbers,
snapshots. No pool, no groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from headway.common.config import from_dict
from headway.common.errors import CorruptError, HeadwayError
from headway.common.node.arena import Arena
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.plan.schedule.actions import Kind
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.sessions import arena_at
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import Aborted
from headway.trainer.config import RunConfig
from headway.trainer.optim.adamw import AdamW
from headway.trainer.optim.schedule import learning_rate
from headway.trainer.session.hooks import Directive, StepHooks, StepResult
from headway.trainer.session.session import Session
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.snapshot import Snapshots
from headway.trainer.state.train_state import TrainState

pytestmark = pytest.mark.usefixtures("one_thread")


def _config(**ckpt: int) -> RunConfig:
    settings = small_run("fp32", world_size=1)
    settings["ckpt"] = {"durable_every": 1000, **ckpt}
    return from_dict(RunConfig, settings)


def _session(config: RunConfig, folder: Path | None = None) -> Session:
    opener = arena_at(folder / "arena-0.bin") if folder is not None else None
    return Session(config, 0, data_factory=synthetic(config, 0), open_arena=opener)


class _Hooks(StepHooks):
    """Hears the commands ``{step: (sequence, directive)}`` as soon as that step has ended."""

    def __init__(self, commands: dict[int, Directive] | None = None) -> None:
        self.commands = commands or {}
        self.results: list[StepResult] = []
        self.pauses: list[bool] = []
        self.rounds = 0
        self.after: Callable[[StepResult], Any] = lambda _: None

    def command_seq(self) -> int:
        return sum(step <= len(self.results) for step in self.commands)

    def apply(self, step: int, applied: int, agreed: int) -> Directive:
        del step
        self.rounds += 1
        last = Directive()
        for number, key in enumerate(sorted(self.commands), 1):
            if number <= agreed:
                command = self.commands[key]
                last = replace(command, checkpoint=command.checkpoint and number > applied)
        if last.pause and self.rounds > 30:
            last = replace(last, pause=False)
        return last

    def on_step(self, result: StepResult) -> None:
        self.results.append(result)
        self.after(result)

    def on_pause(self, paused: bool) -> None:
        self.pauses.append(paused)


def _run(session: Session, hooks: StepHooks, until: int) -> None:
    session.join(Groups.alone())
    session.load("init")
    session.run(hooks, until)
    session.leave()


def test_a_new_learning_rate_takes_effect_at_the_step_after_the_agreement() -> None:
    config = _config()
    hooks = _Hooks({3: Directive(lr=0.5)})
    _run(_session(config), hooks, 7)
    planned = [learning_rate(config.optim, step, config.train.steps) for step in range(7)]
    assert [result.lr for result in hooks.results] == [*planned[:4], 0.5, 0.5, 0.5]


def test_a_stop_ends_the_run_after_the_step_that_agrees_on_it(tmp_path: Path) -> None:
    hooks = _Hooks({3: Directive(stop=True)})
    session = _session(_config(), tmp_path)
    _run(session, hooks, 20)
    assert [result.step for result in hooks.results] == [0, 1, 2, 3]
    with Arena.open(tmp_path / "arena-0.bin") as arena:
        assert (arena.committed, [info.step for info in arena.wanted()]) == (4, [4])


def test_a_rank_that_wants_to_stop_ends_the_run_even_when_it_is_paused() -> None:
    """The flag joins what the commands ask for, which stays: here a learning rate and a pause."""

    class Stopping(_Hooks):
        def stop_requested(self) -> bool:
            return len(self.results) == 4

    hooks = Stopping({1: Directive(lr=0.5), 4: Directive(lr=0.5, pause=True)})
    session = _session(_config())
    _run(session, hooks, 20)
    assert [result.step for result in hooks.results] == [0, 1, 2, 3, 4]
    assert hooks.results[-1].lr == 0.5


def test_a_pause_holds_between_steps_and_goes_on() -> None:
    hooks = _Hooks({2: Directive(pause=True)})
    _run(_session(_config()), hooks, 5)
    assert hooks.pauses[0] is True and hooks.pauses[-1] is False
    assert hooks.rounds > 30
    assert [result.step for result in hooks.results] == [0, 1, 2, 3, 4]


def test_a_checkpoint_command_marks_the_next_snapshot_once(tmp_path: Path) -> None:
    hooks = _Hooks({2: Directive(checkpoint=True)})
    wanted: dict[int, list[int]] = {}

    def look(result: StepResult) -> None:
        with Arena.open(tmp_path / "arena-0.bin") as arena:
            wanted[result.step] = [info.step for info in arena.wanted()]
            for info in arena.wanted():
                arena.release(info)

    hooks.after = look
    _run(_session(_config(), tmp_path), hooks, 6)
    assert {step: steps for step, steps in wanted.items() if steps} == {3: [3]}


def test_a_busy_store_gets_the_next_durable_snapshot_when_it_is_free(tmp_path: Path) -> None:
    hooks = _Hooks()
    pinned: dict[int, list[int]] = {}

    def look(result: StepResult) -> None:
        with Arena.open(tmp_path / "arena-0.bin") as arena:
            pinned[result.step] = [info.step for info in arena.wanted()]
            if result.step == 6:
                arena.release(arena.wanted()[0])

    def release(result: StepResult) -> None:
        look(result)
        if result.step == 8:
            with Arena.open(tmp_path / "arena-0.bin") as arena:
                for info in arena.wanted():
                    arena.release(info)

    hooks.after = release
    _run(_session(_config(durable_every=2), tmp_path), hooks, 9)
    # Snapshot 2 is pinned until step 6 ends; 4 and 6 wait and become 8, the first
    # after step 7's agreement.
    assert [pinned[step] for step in range(2, 9)] == [[2]] * 5 + [[], [8]]


def test_a_number_that_is_not_finite_skips_the_update_and_says_so() -> None:
    session = _session(_config())
    hooks = _Hooks()
    session.join(Groups.alone())
    session.load("init")
    before = session.flats[0].state.clone()
    session.flats[0].master[7] = session.flats[0].params[7] = float("nan")
    session.run(hooks, 2)
    session.leave()
    assert [result.skipped for result in hooks.results] == [True, True]
    after = session.flats[0].state
    changed = (after != before) & ~torch.isnan(after)
    assert not changed.any()


def test_a_skipped_step_is_no_update_for_bias_correction_and_rate_also_after_a_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    adamw = AdamW.step

    def step(
        self: AdamW, flats: list[FlatChunk], lr: float, updates: int, *rest: Any, **more: Any
    ) -> None:
        counts.append(updates)
        adamw(self, flats, lr, updates, *rest, **more)

    monkeypatch.setattr(AdamW, "step", step)
    config = _config()
    session, first, second = _session(config, tmp_path), _Hooks(), _Hooks()
    good = torch.zeros(())

    def spoil(result: StepResult) -> None:
        # only step 2 computes with a number that is not finite
        master, params = session.flats[0].master, session.flats[0].params
        if result.step == 1:
            good.copy_(master[7])
            master[7] = params[7] = float("nan")
        if result.step == 2:
            master[7] = params[7] = good

    first.after = spoil
    session.join(Groups.alone(1))
    session.load("init")
    session.run(first, 4)
    session.leave()
    assert [result.skipped for result in first.results] == [False, False, True, False]
    with Arena.open(tmp_path / "arena-0.bin") as arena:
        for info in arena.wanted():
            arena.release(info)  # as a store does
    again = _session(
        config, tmp_path
    )  # as a standby has it: only the arena knows of the skipped step
    again.join(Groups.alone(2))
    again.load("arena", 4)
    again.run(second, 6)
    again.leave()
    assert counts == [0, 1, 2, 3, 4]
    planned = [learning_rate(config.optim, update, config.train.steps) for update in range(5)]
    lrs = [result.lr for result in first.results + second.results]
    assert lrs == [*planned[:2], planned[2], *planned[2:]]


def test_a_fenced_session_leaves_and_can_be_loaded_again(tmp_path: Path) -> None:
    session = _session(_config(), tmp_path)
    groups = Groups.alone(1)
    hooks = _Hooks()
    hooks.after = lambda result: groups.channels.abort() if result.step == 4 else None
    session.join(groups)
    session.load("init")
    with pytest.raises(Aborted):
        session.run(hooks, 20)
    session.leave()
    again = _Hooks()
    session.join(Groups.alone(2))
    session.load("arena", 5)
    session.run(again, 8)
    session.leave()
    straight = _Hooks()
    _run(_session(_config()), straight, 8)
    assert [r.loss for r in hooks.results + again.results] == [r.loss for r in straight.results]


def test_parameters_and_gradients_have_new_memory_after_a_generation() -> None:
    session = _session(_config())
    _run(session, StepHooks(), 1)
    old = session.flats[0].params.data_ptr(), session.flats[0].grads.data_ptr()
    held = session.flats[0].params, session.flats[0].grads
    session.join(Groups.alone(2))
    session.load("init")
    assert (session.flats[0].params.data_ptr(), session.flats[0].grads.data_ptr()) != old
    del held
    session.leave()


def test_restoring_a_step_that_was_never_sealed_is_an_error(tmp_path: Path) -> None:
    session = _session(_config(), tmp_path)
    _run(session, StepHooks(), 3)
    session.join(Groups.alone(2))
    with pytest.raises(HeadwayError, match="holds no snapshot of that step, only"):
        session.load("arena", 9)


def test_a_durable_state_of_another_size_is_refused() -> None:
    session = _session(_config())
    session.join(Groups.alone())
    with pytest.raises(CorruptError, match="has 64 bytes"):
        session.load("durable", 3, (np.zeros(64, np.uint8), TrainState(step=3, samples=48).pack()))


def test_extra_state_survives_packing_and_garbage_is_refused() -> None:
    extra = TrainState(step=7, samples=112, command=3, durable_due=True, fingerprint="f", skipped=2)
    assert TrainState.unpack(extra.pack()) == extra
    older = msgspec.msgpack.encode({"step": 7, "samples": 112, "command": 3})
    assert TrainState.unpack(older) == TrainState(step=7, samples=112, command=3), (
        "of an older release"
    )
    with pytest.raises(CorruptError):
        TrainState.unpack(b"\x93garbage")


def test_without_an_arena_sealing_succeeds_at_once() -> None:
    session = _session(_config())
    session.join(Groups.alone())
    session.load("init")
    snapshots = Snapshots(None, session.flats)
    snapshots.begin(4, 1, TrainState(step=4, samples=64), durable=True)
    snapshots.finish()
    assert (snapshots.sealed, snapshots.busy) == (4, False)
    session.leave()


def test_the_flight_ring_tells_a_step_in_the_order_it_happened(tmp_path: Path) -> None:
    flight = FlightWriter.create(tmp_path / "flight-0.bin", 0)
    config = _config()
    session = Session(config, 0, data_factory=synthetic(config, 0), recorder=flight)
    _run(session, StepHooks(), 3)
    flight.close()
    reader = FlightReader(tmp_path / "flight-0.bin")
    records = reader.snapshot()
    reader.close()
    assert (records["end_ns"] >= records["start_ns"]).all(), "a record was left open"
    second = records[(records["step"] == 1) & (records["flags"] == 0)]
    kinds = [Kind(kind).name for kind in second["kind"]]
    assert kinds[:3] == ["STEP", "ALL_GATHER", "DATA"]
    assert kinds[-5:] == ["REDUCE_SCATTER", "SNAPSHOT_WAIT", "NORM", "OPTIMIZER", "SNAPSHOT"]
    assert kinds[3:-5] == ["FORWARD", "BACKWARD"] * 8
    assert list(second["micro_batch"][3:-5]) == [mb for mb in range(8) for _ in range(2)]


def test_a_sample_never_goes_beyond_the_positions_that_the_model_knows() -> None:
    session = _session(_config())
    session.join(Groups.alone())
    session.load("init")
    length = session.config.model.seq_len
    tokens = session.sample([1, 2], length)
    assert len(tokens) == length - 2
    session.leave()
