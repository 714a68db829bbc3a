"""A stand-in does what the real chunk does: the same collectives, for as long."""

from __future__ import annotations

import time

import pytest
import torch
from headway.common.config import load
from headway.common.plan.grid import Coordinates
from headway.trainer.comm.interface import Done, Op, SingleRank, Ticket
from headway.trainer.config import RunConfig
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.session.build import build_model
from headway.trainer.trials.passes import Moment, Passes, record_passes
from headway.trainer.trials.stand_in import SleepingChunk

SMALL = [
    "model.layers=2", "model.hidden=32", "model.heads=2", "model.vocab_size=128",
    "model.seq_len=16", "parallel.tp=2", "parallel.pp=2", "launch.ranks_per_node=4",
    "train.dtype=fp32", "train.device=cpu",
]  # fmt: skip


def config(*more: str) -> RunConfig:
    return load(RunConfig, [], [*SMALL, *more])


class Counting(SingleRank):
    """A group of two that notes the sizes of its calls, and whether each was waited for."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 2
        self.calls: list[tuple[str, int]] = []
        self.waits = 0

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor) -> Ticket:
        assert out.numel() == 2 * shard.numel()
        return self._noted("all_gather", out)

    def reduce_scatter(self, out: torch.Tensor, flat: torch.Tensor) -> Ticket:
        assert flat.numel() == 2 * out.numel()
        return self._noted("reduce_scatter", flat)

    def all_reduce(self, tensor: torch.Tensor, op: Op = "sum") -> Ticket:
        del op
        return self._noted("all_reduce", tensor)

    def _noted(self, kind: str, whole: torch.Tensor) -> Ticket:
        self.calls.append((kind, whole.numel()))
        counting = self

        class Noted(Done):
            def wait(self) -> None:
                counting.waits += 1

        return Noted()


def played(run: RunConfig, passes: Passes, comm: Counting, *, pp: int) -> SleepingChunk:
    tp = TensorParallel(comm, pieces=run.parallel.tp_pieces)
    chunks, _ = build_model(run, Coordinates(pp=pp), tp, torch.device("cpu"))
    return SleepingChunk(chunks[0], passes, run.train.micro_batch_size)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("pp", [0, 1])
def test_a_stand_in_issues_the_collectives_of_the_real_chunk(pieces: int, pp: int) -> None:
    """Caught: a pass that leaves out, repeats or resizes a call, or forgets to wait for one."""
    run = config(f"parallel.tp_pieces={pieces}")
    real, sleeping = Counting(), Counting()
    chunks, _ = build_model(
        run, Coordinates(pp=pp), TensorParallel(real, pieces=pieces), torch.device("cpu")
    )
    tokens = torch.zeros((1, 16), dtype=torch.int64)
    x = torch.zeros(chunks[0].activation_shape(1))
    given = tokens if chunks[0].is_first else x
    made = chunks[0].forward(given, tokens, torch.ones_like(tokens))
    chunks[0].backward(made, None if chunks[0].is_last else x)

    stand_in = played(run, record_passes(run)[pp][0], sleeping, pp=pp)
    stand_in.backward(stand_in.forward(given), None if chunks[0].is_last else x)
    assert sleeping.calls == real.calls and real.calls
    assert sleeping.waits == len(sleeping.calls)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_stand_in_comes_by_its_buckets_as_the_real_chunk_does(schedule: str) -> None:
    run = config("model.layers=4", "parallel.buckets=2", f"parallel.schedule={schedule}")
    chunk, found = played(run, record_passes(run)[0][0], Counting(), pp=0), list[str]()
    made = chunk.forward(
        torch.zeros((1, 16), dtype=torch.int64), before_bucket=lambda n: found.append(f"before {n}")
    )
    is_whole = schedule == "1f1b"
    grad = torch.zeros(chunk.activation_shape(1))
    chunk.backward(made, grad, weight=is_whole, after_bucket=lambda n: found.append(f"after {n}"))
    if not is_whole:
        assert found == ["before 0", "before 1"]
        chunk.backward_weight(made)
    assert found == ["before 0", "before 1", "after 1"]


def test_tensors_between_stages_have_their_true_size() -> None:
    run = config()
    first, last = (passes[0] for passes in record_passes(run))
    begins, ends = (played(run, p, Counting(), pp=n) for n, p in enumerate((first, last)))
    output = begins.forward(torch.zeros((1, 16), dtype=torch.int64)).take_output()
    assert output.shape == (8, 1, 32) and output.dtype == torch.float32
    forward = ends.forward(output)
    assert forward.output.shape == ()
    grad = ends.backward(forward)
    assert grad is not None and grad.shape == output.shape
    assert begins.backward(forward, grad) is None


def test_a_split_backward_is_recorded_as_two() -> None:
    passes = record_passes(config("parallel.schedule=zb-h1"))[0][0]
    assert sorted(passes) == ["backward_input", "backward_weight", "forward"]
    assert sum(m.seconds for m in passes["backward_weight"]) > 0


def test_a_pass_takes_as_long_as_it_was_recorded_and_short_moments_add_up() -> None:
    """Caught: moments below the shortest sleep that are dropped."""
    moments = [Moment("compute", seconds=1e-4)] * 300
    stand_in = played(config(), {"forward": moments}, Counting(), pp=1)
    began_s = time.perf_counter()
    stand_in.forward(torch.zeros(1))
    assert time.perf_counter() - began_s > 0.028
