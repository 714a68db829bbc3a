"""The predicted memory of a rank against what torch's allocator counts, and its failures."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable

import pytest
import torch
from headway.common.config import from_dict
from headway.common.plan.memory import advise, predict, worst
from headway.testkit.trainer.comm import ThreadComm, run_ranks
from headway.testkit.trainer.layouts import small_run
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.config import RunConfig
from headway.trainer.config.memory import memory_shape
from headway.trainer.errors import RefusedError
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.session.build import build_model
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session
from headway.trainer.worker.failures import is_out_of_memory
from headway.trainer.worker.link import WorkerStatus
from headway.trainer.worker.memory import FIRST_STEPS, MemoryMeter, MemoryWatch, too_small
from torch.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.usefixtures("one_thread")

MODEL = {"layers": 4, "hidden": 64, "heads": 4, "vocab_size": 2048, "seq_len": 128}


def config(model: dict[str, object] | None = None, **train: object) -> RunConfig:
    settings = small_run("fp32", world_size=1)
    settings["model"] = {**MODEL, **(model or {})}
    settings["train"] |= {
        "steps": 6,
        "micro_batch_size": 16,
        "global_batch_size": 32,
        "eval_batches": 1,
        **train,
    }
    settings["ckpt"] = {"durable_every": 1000}
    return from_dict(RunConfig, settings)


def session(config: RunConfig) -> Session:
    made = Session(config, 0, data_factory=synthetic(config, 0))
    made.join(Groups.alone(0))
    made.load("init")
    return made


def allocated(run: Callable[[], object]) -> int:
    """The most that torch's allocator handed out during ``run``, beyond what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    found = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    events = [event for event in found if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize(
    "model", [{"block": "serial"}, {"block": "parallel"}, {"preset": "neox"}], ids=str
)
@pytest.mark.parametrize(
    "train",
    [
        {},
        {"recompute": "selective"},
        {"recompute": "full"},
        {"recompute": "full", "recompute_layers": [0, 3]},
        {"dtype": "bf16"},
        {"dtype": "bf16", "recompute": "selective"},
    ],
    ids=lambda train: "-".join(map(str, train.values())) or "none",
)
def test_a_step_allocates_what_is_predicted(
    model: dict[str, object], train: dict[str, object]
) -> None:
    """Catches a tensor that the model keeps longer, or one more, than the prediction knows.

    A processor without AVX-512 computes bf16 products by other kernels, with other temporary
    buffers: the model's own are 3 % below what is allocated there, or 8 % above.
    """
    run = config(model, **train)
    made = session(run)
    made.run(StepHooks(), until=1)  # beyond the first evaluation
    peak = allocated(lambda: made.run(StepHooks(), until=2))
    predicted = predict(memory_shape(run), 0)
    state = sum(t.nbytes for f in made.flats for t in (f.params, f.grads, f.state))
    assert predicted.parameters + predicted.gradients + predicted.optimizer == state
    is_exact = run.train.dtype != "bf16" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert predicted.total - state == pytest.approx(peak, rel=0.01 if is_exact else 0.1)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_state_of_ranks_that_share_heads_is_predicted(kv_heads: int) -> None:
    settings = small_run("fp32", parallel={"tp": 4}, world_size=4)
    settings["model"] |= {"kv_heads": kv_heads, "bias": "qkv"}
    run = from_dict(RunConfig, settings)
    predicted = predict(memory_shape(run), 0)

    def member(comm: ThreadComm) -> tuple[int, int]:
        place = run.parallel.grid.coordinates(comm.rank)
        flats = build_model(run, place, TensorParallel(comm), torch.device("cpu"))[1]
        return sum(f.params.nbytes for f in flats), sum(f.state.nbytes for f in flats)

    assert run_ranks(4, member) == [(predicted.parameters, predicted.optimizer)] * 4


def test_the_peak_is_reported_after_the_first_steps_and_again_only_when_it_grows() -> None:
    gc.collect()  # what earlier tests have left would be freed while it counts
    run = config()
    watch, view = MemoryWatch(run, 0, torch.device("cpu")), WorkerStatus()
    kept, made, seen = [], session(run), []

    class Hooks(StepHooks):
        def on_step(self, result: StepResult) -> None:
            watch.after_step(view)
            seen.append(view.memory_bytes)
            if result.step == FIRST_STEPS:
                kept.append(torch.ones(64 << 20, dtype=torch.uint8))

    watch.begin()
    made.run(Hooks(), until=6)
    assert seen[: FIRST_STEPS - 1] == [0] * (FIRST_STEPS - 1) and seen[FIRST_STEPS - 1] > 0
    assert seen[-1] >= seen[FIRST_STEPS - 1] + (40 << 20)
    assert view.memory_predicted == predict(memory_shape(run), 0).total


def test_a_meter_counts_what_was_freed_since() -> None:
    meter = MemoryMeter(torch.device("cpu"))
    tensor = torch.ones(96 << 20, dtype=torch.uint8)
    del tensor
    assert 90 << 20 < meter.peak() < 120 << 20
    meter.restart()
    assert meter.peak() < 30 << 20


def test_the_allocators_own_errors_are_known_and_others_are_not() -> None:
    with pytest.raises(RuntimeError) as failed:
        torch.empty(1 << 55)
    assert is_out_of_memory(failed.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"))
    with pytest.raises(RuntimeError) as other:
        torch.ones(2) @ torch.ones(3)
    assert not is_out_of_memory(other.value)


def test_the_end_for_want_of_memory_names_rank_parts_and_what_would_help() -> None:
    run = config()
    refused = too_small(run, 0, RuntimeError("DefaultCPUAllocator: can't allocate memory: x"))
    assert isinstance(refused, RefusedError)
    assert "rank 0" in refused.message and "activations" in refused.message
    assert "train.recompute=full (saves" in refused.remedy
    shape, savings = memory_shape(run), advise(memory_shape(run))
    assert len(savings) == 3
    assert all(a.nbytes >= b.nbytes > 0 for a, b in itertools.pairwise(savings))
    full = memory_shape(config(recompute="full"))
    known = {saving.change: saving.nbytes for saving in savings}
    assert known["train.recompute=full"] == worst(shape).total - worst(full).total
