"""Spikes of loss and gradient norm: found, skipped or the end of the run, the same after a
recovery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from headway.common.config import from_dict
from headway.common.errors import ConfigError
from headway.common.node.arena import Arena
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.pool import WorkerPool
from headway.testkit.trainer.sessions import arena_at
from headway.testkit.trainer.synthetic import synthetic
from headway.testkit.trainer.training import train_layout
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig, TrainConfig
from headway.trainer.errors import SpikeError, SpikeRollback
from headway.trainer.session import commands as control_loop
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session
from headway.trainer.session.spikes import SpikeGuard
from headway.trainer.state.train_state import TrainState

SPIKE, STEPS = 12, 16
SPOILED = (SPIKE * 16, (SPIKE + 1) * 16)
"""The samples of step 12: its norm is 3.5, the median of the steps before it 0.9."""


def _settings(on_spike: str, dtype: str = "fp32", **layout: Any) -> dict[str, Any]:
    settings = small_run(dtype, **{"world_size": 1, **layout})
    settings["train"] |= {
        "steps": 20,  # the last of a schedule that has not begun to matter at step 12
        "on_spike": on_spike,
        "spike_factor": 2.0,
        "spike_window": 5,
        "eval_every": 0,
    }
    settings["ckpt"] = {"durable_every": 1000}
    return settings


class _Steps(StepHooks):
    """Keeps results, and the state after each step."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.results: list[StepResult] = []
        self.states: list[torch.Tensor] = []

    def on_step(self, result: StepResult) -> None:
        self.results.append(result)
        self.states.append(self.session.flats[0].state.clone())

    @property
    def curve(self) -> list[tuple[int, str, str, bool]]:
        """Bits of each step's loss and norm, and whether it was skipped."""
        return [(r.step, r.loss.hex(), r.grad_norm.hex(), r.skipped) for r in self.results]


@pytest.fixture(autouse=True)
def no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """No store takes the snapshots here; the last one need not be waited for."""
    monkeypatch.setattr(control_loop, "STILL_ROUNDS", 2)


def _train(
    on_spike: str, arena: Path, until: int = STEPS, step: int = 0, *, skip_to: int = 0
) -> _Steps:
    """A new session, as after a recovery: what it knows of earlier steps is in the arena."""
    config = from_dict(RunConfig, _settings(on_spike))
    session = Session(
        config,
        0,
        data_factory=synthetic(config, 0, range(*SPOILED)),
        open_arena=arena_at(arena),
    )
    hooks = _Steps(session)
    session.join(Groups.alone(step))
    session.load("arena" if step else "init", step, skip_to=skip_to)
    session.run(hooks, until)
    session.leave()
    session.close()
    return hooks


@pytest.mark.usefixtures("one_thread")
def test_a_rollback_names_the_position_behind_the_spike_and_training_continues_there(
    tmp_path: Path,
) -> None:
    found = _train("rollback", tmp_path / "a")
    assert [r.step for r in found.results] == list(range(SPIKE))
    assert not found.session.is_complete and not found.session.is_last_wanted
    spike = found.session.spike
    assert isinstance(spike, SpikeRollback) and spike.end == SPOILED[1]
    again = _train("rollback", tmp_path / "a", skip_to=spike.end)
    assert again.session.spike is None and again.session.step == STEPS
    assert again.session.samples == spike.end + STEPS * 16
    late = _train("rollback", tmp_path / "a", STEPS, STEPS, skip_to=spike.end)
    assert late.session.samples == again.session.samples, "a position behind it stays"


@pytest.mark.usefixtures("one_thread")
def test_a_skipped_spike_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    found = _train("skip", tmp_path / "a")
    assert [r.step for r in found.results if r.skipped] == [SPIKE]
    assert torch.equal(found.states[SPIKE], found.states[SPIKE - 1])
    assert not torch.equal(found.states[SPIKE + 1], found.states[SPIKE])
    text = found.results[SPIKE].spike
    assert text.startswith("the gradient norm 3.4") and "train.spike_factor=2 times" in text
    lrs = [r.lr for r in found.results]
    assert lrs[SPIKE + 1] == lrs[SPIKE], "a skipped step is not an update"
    ignored = _train("ignore", tmp_path / "b")
    assert not any(r.skipped or r.spike for r in ignored.results)
    assert ignored.curve[: SPIKE + 1] != found.curve[: SPIKE + 1]
    assert [c[:3] for c in ignored.curve[: SPIKE + 1]] == [c[:3] for c in found.curve[: SPIKE + 1]]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("broken_after", [SPIKE - 1, SPIKE + 1])
def test_a_recovery_decides_as_before(tmp_path: Path, broken_after: int) -> None:
    whole = _train("skip", tmp_path / "whole")
    early = _train("skip", tmp_path / "broken", broken_after)
    late = _train("skip", tmp_path / "broken", STEPS, broken_after)
    assert early.curve + late.curve == whole.curve
    assert torch.equal(late.states[-1], whole.states[-1])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("resumed_with", ["skip", "ignore", "stop"])
def test_a_stop_keeps_the_state_before_the_spike_from_which_the_run_can_be_resumed(
    tmp_path: Path, resumed_with: str
) -> None:
    stopped = _train("stop", tmp_path / "a")
    assert [r.step for r in stopped.results] == list(range(SPIKE))
    assert stopped.session.step == SPIKE and stopped.session.samples == SPIKE * 16
    assert not stopped.session.is_complete and stopped.session.is_last_wanted
    error = stopped.session.spike
    assert isinstance(error, SpikeError)
    for part in (
        f"step {SPIKE} is a spike: the gradient norm 3.4",
        "loss 4.3",
        "checkpoint 12 is the state before it",
        "train.on_spike=skip",
    ):
        assert part in str(error)
    with Arena.open(tmp_path / "a") as arena:
        assert [info.step for info in arena.wanted()] == [SPIKE]
        for info in arena.wanted():
            arena.release(info)
    resumed = _train(resumed_with, tmp_path / "a", STEPS, SPIKE)
    expected = _train(resumed_with, tmp_path / "b")
    assert stopped.curve + resumed.curve == expected.curve
    if resumed_with == "stop":
        assert resumed.curve == [] and str(resumed.session.spike) == str(error)


GRID: dict[str, Any] = {"pp": 2, "dp": 2, "schedule": "1f1b"}


def test_all_ranks_skip_together_as_one_process_does(pool: WorkerPool, tmp_path: Path) -> None:
    alone, ranks = _settings("skip", "fp64"), _settings("skip", "fp64", parallel=GRID, world_size=4)
    expected = train_layout(pool, alone, 1, tmp_path / "alone", STEPS, spoiled=SPOILED)
    found = train_layout(pool, ranks, 4, tmp_path / "ranks", STEPS, spoiled=SPOILED)
    ignored = _settings("ignore", "fp64")
    other = train_layout(pool, ignored, 1, tmp_path / "other", STEPS, spoiled=SPOILED)
    for curve in ("losses", "norms"):
        ours, theirs = getattr(found, curve), getattr(expected, curve)
        assert max(abs(ours[step] - theirs[step]) for step in range(STEPS)) < 1e-9
    assert abs(other.losses[SPIKE + 1] - expected.losses[SPIKE + 1]) > 1e-4, "it was skipped"


def _guard(size: int = 4, **changes: Any) -> tuple[SpikeGuard, TrainState]:
    state = TrainState(step=0, samples=0)
    config = TrainConfig(on_spike="skip", spike_factor=3.0, spike_window=size, **changes)
    return SpikeGuard(config, state), state


def test_loss_and_norm_are_judged_by_the_median_of_a_full_window() -> None:
    guard, state = _guard()
    for loss, norm in ((2.0, 1.0), (3.0, 9.0), (2.0, 1.0)):
        assert guard.spike(99.0, 99.0) == "", "the window is not full"
        guard.accept(loss, norm)
    guard.accept(2.0, 1.0)
    assert guard.spike(6.0, 3.0) == ""
    assert guard.spike(6.1, 3.0).startswith("the loss 6.1 is above 6,")
    assert guard.spike(6.1, 3.1).startswith("the gradient norm 3.1 is above 3,")
    for _ in range(9):
        guard.accept(4.0, 2.0)
    assert state.recent_losses == (4.0,) * 4 and state.recent_norms == (2.0,) * 4
    assert guard.spike(11.9, 5.9) == ""


def test_the_window_survives_packing_bit_for_bit_and_older_snapshots_have_none() -> None:
    state = TrainState(0, 0, recent_losses=(0.1, 1 / 3), recent_norms=(2.0, 1e-300))
    assert TrainState.unpack(state.pack()) == state
    assert TrainState.unpack(msgspec.msgpack.encode({"step": 1, "samples": 2})).recent_losses == ()
    full = TrainState(0, 0, recent_losses=(0.1,) * 1000, recent_norms=(0.1,) * 1000)
    assert len(full.pack()) < 65536


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"spike_factor": 1.0}, "spike_factor=1 is not above 1"),
        ({"spike_factor": float("nan")}, "spike_factor=nan"),
        ({"spike_window": 0}, "spike_window=0"),
        ({"spike_window": 1001}, "spike_window=1001"),
    ],
)
def test_a_threshold_that_makes_no_sense_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        TrainConfig(**settings)
