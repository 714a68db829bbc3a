"""A run resumes with another micro-batch: its state and its samples do not depend on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from headway.common.config import from_dict
from headway.common.errors import ConfigError
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session
from headway.trainer.state.train_state import TrainState


def config_of(micro_batch_size: int) -> RunConfig:
    train = {"global_batch_size": 8, "micro_batch_size": micro_batch_size, "dtype": "fp64"}
    model = {"layers": 2, "hidden": 16, "heads": 2, "vocab_size": 64, "seq_len": 8}
    return from_dict(RunConfig, {"model": model, "train": {**train, "steps": 6}})


class Results(StepHooks):
    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def on_step(self, result: StepResult) -> None:
        self.seen.append((result.loss, result.grad_norm))


def train(config: RunConfig, until: int, given: Any = None) -> tuple[Results, Any]:
    """The steps up to ``until`` from the first weights, or from ``given``."""
    session, results = Session(config, 0, data_factory=synthetic(config, 0)), Results()
    session.join(Groups.alone())
    if given is None:
        session.load("init")
    else:
        session.load("durable", TrainState.unpack(given[1]).step, given)
    session.run(results, until)
    state = session.flats[0].state.numpy().view(np.uint8).copy()
    data = session._data.fingerprints["train"]
    extra = TrainState(step=session.step, samples=session.samples, fingerprint=data)
    session.leave()
    return results, (state, extra.pack())


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 8), (2, 1)])
def test_a_run_goes_on_over_the_same_samples_with_another_micro_batch(
    before: int, after: int
) -> None:
    """Sums have another order, so the last bits differ; in fp64 by less than 1e-12. With the same
    size no bit does."""
    whole, _ = train(config_of(before), 6)
    _, state = train(config_of(before), 3)
    kept, _ = train(config_of(before), 6, state)
    assert kept.seen == whole.seen[3:]
    changed, _ = train(config_of(after), 6, state)
    assert len(kept.seen) == len(changed.seen) == 3
    for one, other in zip(kept.seen, changed.seen, strict=True):
        assert one == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"kv_heads": 3, "heads": 6}, "set parallel.tp=1"),
        ({"heads": 12, "kv_heads": 4, "ffn": 48}, "set parallel.tp=4"),
    ],
)
def test_a_layout_that_does_not_divide_the_heads_advises_one_that_does(
    changes: dict[str, int], remedy: str
) -> None:
    """The sizes of an imported model cannot be changed."""
    model = {"layers": 2, "hidden": 24, "vocab_size": 512, "seq_len": 16, **changes}
    tp = 6 if remedy.endswith("4") else 2
    run = {"model": model, "parallel": {"tp": tp}, "launch": {"ranks_per_node": tp}}
    with pytest.raises(ConfigError, match=r"model.kv_heads=.* is not divisible") as raised:
        from_dict(RunConfig, run)
    assert raised.value.remedy.startswith(remedy)
