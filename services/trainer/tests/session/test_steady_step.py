"""A step's operations: none outside of NORM for which the host of a GPU would wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from headway.common.plan.schedule.actions import Kind
from headway.testkit.trainer.sessions import one_rank
from headway.testkit.trainer.steady import Operations, SteadyPart
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.device.deterministic import make_deterministic
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session

NUM_STEPS = 3
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "serial": {},
    "parallel": {"model": {"block": "parallel"}},
    "selective": {"train": {"recompute": "selective"}},
    "full": {"train": {"recompute": "full"}},
    "bf16": {"train": {"dtype": "bf16"}},
    "documents": {"model": {"document_end": 7}},
    "buckets": {"parallel": {"vp": 2}},
    "lamb": {"optim": {"name": "lamb", "max_trust_ratio": 10.0}},
}


def variant(name: str) -> RunConfig:
    config = one_rank()
    changes = {
        table: replace(getattr(config, table), **fields) for table, fields in VARIANTS[name].items()
    }
    return replace(config, **changes)


class Results(StepHooks):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def on_step(self, result: StepResult) -> None:
        self.seen.append((result.loss.hex(), result.grad_norm.hex()))


def train(config: RunConfig, recorder: SteadyPart | None = None) -> list[tuple[str, str]]:
    """The bits of every step's loss and norm."""
    session = Session(config, 0, data_factory=synthetic(config, 0), recorder=recorder)
    results = Results()
    session.join(Groups.alone())
    try:
        session.load("init")
        session.run(results, NUM_STEPS)
    finally:
        session.leave()
        session.close()
    return results.seen


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", VARIANTS)
def test_the_host_waits_for_the_device_in_norm_only(name: str) -> None:
    with Operations() as operations:
        # DATA converts numpy arrays here; on a GPU they go through page-locked memory
        recorder = SteadyPart(operations.switch, waits=(Kind.NORM, Kind.DATA))
        train(variant(name), recorder)
    assert recorder.num_steps == NUM_STEPS
    update = "aten::lerp_" if name == "lamb" else "aten::_fused_adamw_"
    assert {"aten::mm", update, "aten::index_put_"} <= operations.seen
    assert operations.waiting == []


def test_operations_that_wait_are_noticed() -> None:
    values, mask = torch.arange(4.0), torch.tensor([True, False, True, True])
    for wait in (
        lambda: values.sum().item(),
        lambda: bool(values.any()),
        lambda: values[mask],
        lambda: values.index_put_((mask,), torch.zeros(())),
        lambda: mask.nonzero(),
        lambda: torch.tensor(1.0),
    ):
        with Operations() as operations:
            recorder = SteadyPart(operations.switch)
            wait()
            with recorder.record(Kind.NORM):
                wait()
            assert operations.waiting == [], "outside of steps it may wait"
            with recorder.record(Kind.STEP):
                with recorder.record(Kind.NORM):
                    wait()
                assert operations.waiting == [], "in NORM it may wait"
                with recorder.record(Kind.FORWARD):
                    wait()
        assert operations.waiting


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    fills = torch.utils.deterministic.fill_uninitialized_memory
    make_deterministic()
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fills


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["serial", "bf16"])
def test_deterministic_algorithms_change_no_bit_on_a_cpu(
    name: str, request: pytest.FixtureRequest
) -> None:
    plain = train(variant(name))
    request.getfixturevalue("deterministic")
    assert torch.are_deterministic_algorithms_enabled()
    assert train(variant(name)) == plain
