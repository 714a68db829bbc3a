"""Sampling over a cut vocabulary, and the mean loss."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from headway.testkit.trainer import reference
from headway.testkit.trainer.comm import ThreadComm, run_ranks
from headway.testkit.trainer.models import Part, random_batch, tiny_model
from headway.trainer.parallel.tensor import TensorParallel
from headway.trainer.sample import sample_next
from headway.trainer.steering import Sums


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


def test_mean_loss_is_the_sum_over_tokens_and_nan_without_any() -> None:
    assert Sums(0.0, 12.0, 8.0).mean_loss == 1.5
    assert math.isnan(Sums(0.0, 0.0, 0.0).mean_loss)
