"""Sampling over a cut vocabulary, and the mean loss."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from headway.testkit.trainer.comm import ThreadComm, run_ranks
from headway.testkit.trainer.models import Part, random_batch, tiny_model
from headway.trainer.comm.agreement import Sums
from headway.trainer.inference.sampling import next_token
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.session.sample import sample_next

from services.trainer.tests.model import reference


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_logits_joined_over_ranks_equal_the_reference(tp: int) -> None:
    model, batch = tiny_model("parallel"), random_batch(tiny_model())
    params = reference.initial_params(model, seed=1)
    wanted = reference.whole_logits(params, model, batch.tokens)[:, 5].argmax(-1)

    def member(comm: ThreadComm) -> tuple[torch.Tensor, torch.Tensor]:
        part = Part(model, comm=comm)
        logits = part.chunk.logits(batch.tokens, 5)
        assert logits.shape == (2, 64 // tp)
        return logits, sample_next(logits, part.chunk.tp)

    results = run_ranks(tp, member)
    joined = torch.cat([logits for logits, _ in results], 1)
    torch.testing.assert_close(
        joined, reference.whole_logits(params, model, batch.tokens)[:, 5].detach()
    )
    assert all(torch.equal(token, wanted) for _, token in results)


def test_samples_follow_the_softmax_at_a_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, -50.0, 2.0]])
    num_draws = 4000
    counts = Counter(
        sample_next(
            logits, TensorParallel(), temperature=0.7, uniform=(index + 0.5) / num_draws
        ).item()
        for index in range(num_draws)
    )
    for token, probability in enumerate(torch.softmax(logits[0] / 0.7, 0).tolist()):
        assert counts[token] / num_draws == pytest.approx(probability, abs=1 / num_draws)


def test_the_ends_of_the_unit_interval_give_tokens_that_exist() -> None:
    logits = torch.tensor([[-2000.0, 0.0, -2000.0], [3.0, 3.0, 3.0]])
    assert sample_next(logits, TensorParallel(), temperature=1.0, uniform=0.0).tolist() == [1, 0]
    assert (
        sample_next(logits, TensorParallel(), temperature=1.0, uniform=1.0 - 2**-53).tolist()[1]
        == 2
    )


class OnGpu(torch.Tensor):
    """Refuses what torch has no deterministic kernel for on a GPU."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.__name__
        if name in ("cumsum", "multinomial"):
            raise RuntimeError(f"{name} on CUDA does not have a deterministic implementation")
        if name == "cpu":
            return args[0].as_subclass(torch.Tensor)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_deterministic_run_on_a_gpu_can_sample() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0, 2.0]])
    on_gpu = logits.as_subclass(OnGpu)
    with pytest.raises(RuntimeError, match="deterministic"):
        on_gpu.double().cumsum(-1)
    for uniform in (0.0, 0.05, 0.5, 0.99):
        found = sample_next(on_gpu, TensorParallel(), temperature=0.8, uniform=uniform)
        wanted = sample_next(logits, TensorParallel(), temperature=0.8, uniform=uniform)
        assert found.tolist() == wanted.tolist()
    draws = [torch.Generator().manual_seed(7) for _ in range(2)]
    for top_p in (0.5, 1.0):
        assert next_token(on_gpu[0], temperature=0.8, top_p=top_p, draw=draws[0]) == next_token(
            logits[0], temperature=0.8, top_p=top_p, draw=draws[1]
        )


def test_mean_loss_is_the_sum_over_tokens_and_nan_without_any() -> None:
    assert Sums(0.0, 12.0, 8.0).mean_loss == 1.5
    assert math.isnan(Sums(0.0, 0.0, 0.0).mean_loss)
