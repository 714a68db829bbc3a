"""A ramp of the batch size: a function of the samples, on all ranks, across recoveries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headway.common.config import from_dict
from headway.common.errors import ConfigError
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.pool import WorkerPool
from headway.testkit.trainer.sessions import arena_at, train_on
from headway.testkit.trainer.synthetic import SyntheticBatch, SyntheticSource
from headway.testkit.trainer.training import Trained, train_layout
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.config.batch_ramp import BatchRamp
from headway.trainer.data.batches import DataFactory, Split
from headway.trainer.session.hooks import StepHooks
from headway.trainer.session.session import Session
from hypothesis import given
from hypothesis import strategies as st

RAMP = [4, 4, 40]
"""Up to 16: steps of 4, 4, 4, 4, 8, 8, 12 sequences, then 16."""
SIZES = [4, 4, 4, 4, 8, 8, 12, 16]
STEPS = 10


def _settings(parallel: dict[str, Any], world_size: int, **train: Any) -> dict[str, Any]:
    settings = small_run("fp32", parallel=parallel, world_size=world_size)
    settings["train"] |= {"batch_ramp": RAMP, "micro_batch_size": 1, **train}
    return settings


def test_the_size_follows_the_samples_as_in_megatron_lm() -> None:
    ramp = BatchRamp.of(RAMP, 16)
    assert ramp.sizes(8) == SIZES
    assert [ramp.size(consumed) for consumed in (13, 14, 26, 27, 39, 40)] == [4, 8, 8, 12, 12, 16]
    assert BatchRamp.of((), 16).sizes(3) == [16] * 3


@given(
    start=st.integers(1, 20),
    increment=st.integers(1, 20),
    count=st.integers(1, 10),
    samples=st.integers(1, 2000),
    steps=st.integers(0, 300),
)
def test_it_never_shrinks_and_ends_at_the_full_size(
    start: int, increment: int, count: int, samples: int, steps: int
) -> None:
    full = start + count * increment
    ramp = BatchRamp.of((start, increment, samples), full)
    sizes = ramp.sizes(steps)
    assert sizes == sorted(sizes) and set(sizes) <= set(range(start, full + 1, increment))
    assert ramp.consumed(steps) == sum(sizes)
    assert ramp.size(samples) == full and ramp.size(0) == start


@pytest.mark.parametrize(
    ("train", "parallel", "named"),
    [
        ({"batch_ramp": [4, 4]}, {}, "is not .start, increment, samples."),
        ({"batch_ramp": [4, 0, 9]}, {}, "each 1 or more"),
        ({"batch_ramp": [4, 5, 9]}, {}, "does not lead to train.global_batch_size=16"),
        ({"batch_ramp": [16, 4, 9]}, {}, "does not lead to"),
        ({"batch_ramp": [4, 6, 9], "micro_batch_size": 4}, {}, "6 in .* multiple of .* = 4"),
        (
            {"batch_ramp": [2, 2, 9]},
            {"pp": 2, "dp": 2, "vp": 2, "schedule": "interleaved"},
            "2 in .*parallel.pp = 4",
        ),
    ],
)
def test_a_ramp_that_does_not_fit_is_refused(
    train: dict[str, Any], parallel: dict[str, Any], named: str
) -> None:
    world = parallel.get("pp", 1) * parallel.get("dp", 1)
    with pytest.raises(ConfigError, match=named):
        from_dict(RunConfig, _settings(parallel, world, **train))


def _recording(config: RunConfig, seen: list[tuple[int, bytes]]) -> DataFactory:
    """The synthetic data; notes each micro-batch."""

    class Noting(SyntheticSource):
        def next(self, abort: Any = None) -> SyntheticBatch:
            batch = super().next(abort)
            if self._split == "train":
                seen.append((batch.sample, np.ascontiguousarray(batch.tokens).tobytes()))
            return batch

    def make(split: Split, start: int, generation: int, fingerprint: str) -> SyntheticSource:
        del generation, fingerprint
        return Noting(config, 0, split, start)

    return make


def _train(config: RunConfig, until: int) -> list[tuple[int, bytes]]:
    seen: list[tuple[int, bytes]] = []
    session = Session(config, 0, data_factory=_recording(config, seen))
    session.join(Groups.alone())
    session.load("init")
    session.run(StepHooks(), until)
    session.leave()
    session.close()
    return seen


@pytest.mark.usefixtures("one_thread")
def test_the_order_of_the_data_is_that_without_a_ramp() -> None:
    ramped = from_dict(RunConfig, _settings({}, 1))
    plain = from_dict(RunConfig, _settings({}, 1, batch_ramp=[]))
    seen = _train(ramped, 8)
    assert len(seen) == sum(SIZES) and [sample for sample, _ in seen] == list(range(sum(SIZES)))
    assert _train(plain, 4)[: len(seen)] == seen


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("broken_after", [4, 6])
def test_a_run_restored_in_the_ramp_ends_bit_for_bit_as_the_undisturbed_one(
    tmp_path: Path, broken_after: int
) -> None:
    config = from_dict(RunConfig, _settings({}, 1))

    def session(name: str) -> Session:
        data: list[tuple[int, bytes]] = []
        place = tmp_path / f"{name}.bin"
        return Session(config, 0, data_factory=_recording(config, data), open_arena=arena_at(place))

    whole, first, second = session("whole"), session("broken"), session("broken")
    expected = train_on(whole, STEPS)
    early = train_on(first, broken_after)
    late = train_on(second, STEPS, broken_after, 1)
    assert early + late == expected
    assert second.samples == whole.samples == sum(SIZES) + 2 * 16
    for ours, theirs in zip(second.flats, whole.flats, strict=True):
        assert ours.state.equal(theirs.state)


LAYOUTS = {
    "pp2xdp2-1f1b": {"pp": 2, "dp": 2, "schedule": "1f1b"},
    "pp2xdp2-interleaved": {"pp": 2, "dp": 2, "vp": 2, "schedule": "interleaved"},
    "pp2-zb-h1": {"pp": 2, "schedule": "zb-h1"},
}


@pytest.fixture(scope="module")
def alone(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    settings = _settings({}, 1, dtype="fp64")
    return train_layout(pool, settings, 1, tmp_path_factory.mktemp("alone"), STEPS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_schedule_follows_the_ramp_of_one_process(
    pool: WorkerPool, tmp_path: Path, alone: Trained, name: str
) -> None:
    parallel = LAYOUTS[name]
    world = parallel["pp"] * parallel.get("dp", 1)
    found = train_layout(pool, _settings(parallel, world, dtype="fp64"), world, tmp_path, STEPS)
    for curve in ("losses", "norms"):
        ours, theirs = getattr(found, curve), getattr(alone, curve)
        assert max(abs(ours[step] - theirs[step]) for step in range(STEPS)) < 1e-9
