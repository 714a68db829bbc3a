"""Tensor parallelism against one rank, and the number of its collectives."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from headway.testkit.trainer.comm import ThreadComm, run_ranks
from headway.testkit.trainer.models import Part, cut, random_batch, tiny_model
from headway.trainer.model import loss as loss_module
from headway.trainer.model.kernels import ON_CPU
from headway.trainer.model.loss import cross_entropy
from headway.trainer.parallel.tensor import Pending, TensorParallel
from hypothesis import given, settings
from hypothesis import strategies as st

BLOCKS = ("serial", "parallel")


@pytest.mark.parametrize("split", [False, True], ids=["joint", "split"])
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("block", BLOCKS)
def test_loss_and_gradients_equal_those_of_one_rank(block: str, tp: int, split: bool) -> None:
    model, batch = tiny_model(block), random_batch(tiny_model())
    alone = Part(model)
    wanted_loss, wanted = alone.run(batch, 0.01), alone.grads()

    def member(comm: ThreadComm) -> tuple[float, Part]:
        part = Part(model, comm=comm)
        fwd = part.forward(batch, 0.01)
        part.chunk.backward(fwd, weight=not split)
        part.chunk.backward_weight(fwd)
        part.chunk.finish_grads(0)
        return fwd.output.item(), part

    for loss, part in run_ranks(tp, member):
        assert loss == pytest.approx(wanted_loss, rel=1e-12)
        for spec in part.chunk.buckets[0].params:
            piece = cut(wanted[spec.name], spec)
            error = (part.flat.views(spec.name)[1] - piece).norm() / piece.norm()
            assert error < 1e-10, (spec.name, spec.tp_rank)


@pytest.mark.parametrize("tp", [2, 4])
def test_norms_of_the_ranks_add_up_to_the_norm_of_one(tp: int) -> None:
    """Counting a replicated norm on each rank, or not summing its gradient over tp, fails here."""
    model, batch = tiny_model(), random_batch(tiny_model())
    alone = Part(model)
    alone.run(batch)
    alone.flat.grads.view(-1)[alone.flat.replicated[0] :] *= (
        100.0  # make replicated segments matter
    )

    def member(comm: ThreadComm) -> float:
        part = Part(model, comm=comm)
        part.run(batch)
        part.chunk.finish_grads(0)
        part.flat.grads[part.flat.replicated[0] :] *= 100.0
        return part.flat.norm_square().item()

    wanted = sum((grad.double().square().sum().item()) for grad in alone.grads().values())
    assert alone.flat.norm_square().item() == pytest.approx(wanted, rel=1e-12)
    assert sum(run_ranks(tp, member)) == pytest.approx(wanted, rel=1e-9)


def calls_of_a_pass(block: str, layers: int) -> tuple[Counter[str], Counter[str]]:
    """Collectives of one forward and one backward on two ranks."""
    model = tiny_model(block, layers=layers)

    def member(comm: ThreadComm) -> tuple[Counter[str], Counter[str]]:
        part = Part(model, comm=comm)
        fwd = part.forward(random_batch(model))
        forward_calls = Counter(name for name, _ in comm.calls)
        comm.calls.clear()
        part.chunk.backward(fwd)
        return forward_calls, Counter(name for name, _ in comm.calls)

    first, second = run_ranks(2, member)
    assert first == second
    return first


@pytest.mark.parametrize(("block", "pairs"), [("parallel", 1), ("serial", 2)])
def test_a_layer_costs_a_fixed_number_of_collectives(block: str, pairs: int) -> None:
    one, three = calls_of_a_pass(block, 1), calls_of_a_pass(block, 3)
    for direction in (0, 1):
        per_two_layers = three[direction] - one[direction]
        # the backward gathers the input of each pair again, because only the shard was kept
        gathers = pairs * (1 + direction)
        assert per_two_layers == Counter(all_gather=2 * gathers, reduce_scatter=2 * pairs)
    # And the two ends: the embedding's sum and that of the head's gradient, both forward, where the
    # pieces of the loss are joined too.
    assert [one[direction]["reduce_scatter"] for direction in (0, 1)] == [pairs + 2, pairs]
    assert one[0]["all_gather"] == pairs + 2
    assert one[1]["all_gather"] == 2 * pairs + 1


@pytest.mark.parametrize("block", BLOCKS)
def test_weight_gradients_are_computed_while_each_collective_is_under_way(
    block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, model = Part(tiny_model(block)), tiny_model(block)
    done: list[int] = []  # parameters that have a gradient, at each wait

    class Watching:
        def wait(self) -> None:
            done.append(sum(bool(grad.any()) for grad in part.grads().values()))

    fwd = part.forward(random_batch(model))
    for name in ("all_gather", "reduce_scatter"):
        monkeypatch.setattr(TensorParallel, name, lambda _, x: Pending(x, Watching()))
    part.chunk.backward(fwd)
    # The head has its gradients since the forward. Under the next collective come the final norm's
    # two; then, in turn, the matrix whose product came before, and the one before with its norm.
    expected = [3, 4, 7, 8, 11, 12, 15, 16, 19] if block == "serial" else [3, 5, 9, 11, 15]
    assert done == expected


@pytest.mark.parametrize("pieces", [2, 4])
@pytest.mark.parametrize("block", BLOCKS)
def test_collectives_in_pieces_give_the_same_gradients_in_fp64(block: str, pieces: int) -> None:
    model, batch = tiny_model(block), random_batch(tiny_model())
    wanted = Part(model)
    loss = wanted.run(batch, 0.01)

    def member(comm: ThreadComm) -> tuple[float, Part]:
        part = Part(model, comm=comm, pieces=pieces)
        found = part.run(batch, 0.01)
        part.chunk.finish_grads(0)
        return found, part

    for found, part in run_ranks(2, member):
        assert found == pytest.approx(loss, rel=1e-12)
        for spec in part.chunk.buckets[0].params:
            piece = cut(wanted.flat.views(spec.name)[1], spec)
            assert (part.flat.views(spec.name)[1] - piece).norm() < 1e-10 * piece.norm(), spec.name


def test_a_group_of_one_makes_no_copy_of_activations() -> None:
    tp, x = TensorParallel(), torch.ones(4, 2, 3)
    assert tp.all_gather(x).wait() is x
    assert tp.reduce_scatter(x).wait() is x


@settings(max_examples=30)
@given(
    tp=st.sampled_from([1, 2, 4]),
    tokens=st.integers(1, 40),
    seed=st.integers(0, 2**31),
    scale=st.floats(0.1, 100),
    rows=st.sampled_from((3, 1000)),
)
def test_cross_entropy_over_a_cut_vocabulary_equals_the_whole(
    tp: int, tokens: int, seed: int, scale: float, rows: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = (torch.randn(tokens, 32, dtype=torch.float64, generator=draw) * scale).requires_grad_()
    labels = torch.randint(32, (tokens,), generator=draw)
    mask = (torch.rand(tokens, generator=draw) > 0.3).double()
    wanted = (F.cross_entropy(logits, labels, reduction="none") * mask).sum()
    wanted.backward()

    def member(comm: ThreadComm) -> tuple[torch.Tensor, torch.Tensor]:
        piece = logits.detach().chunk(tp, 1)[comm.rank].clone()
        first, group = comm.rank * piece.shape[1], TensorParallel(comm)
        loss = cross_entropy(piece, labels, mask, group, ON_CPU, first=first, with_grad=True)
        return loss, piece

    with mock.patch.object(loss_module, "BLOCK_ELEMENTS", rows * 32 // tp):
        results = run_ranks(tp, member)
    for loss, _ in results:
        torch.testing.assert_close(loss, wanted.detach(), rtol=1e-12, atol=1e-12)
        assert torch.equal(loss, results[0][0])
    torch.testing.assert_close(
        torch.cat([grad for _, grad in results], 1), logits.grad, rtol=1e-9, atol=1e-13
    )


def test_logits_of_a_thousand_give_a_finite_loss_and_gradient() -> None:
    logits = torch.tensor([[1000.0, -1000.0, 0.0], [-1000.0, -1000.0, -1000.0]])
    loss = cross_entropy(
        logits,
        torch.tensor([1, 0]),
        torch.ones(2),
        TensorParallel(),
        ON_CPU,
        first=0,
        with_grad=True,
    )
    assert loss.item() == pytest.approx(2000.0 + torch.tensor(3.0).log().item(), rel=1e-6)
    torch.testing.assert_close(logits, torch.tensor([[1.0, -1.0, 0.0], [-2 / 3, 1 / 3, 1 / 3]]))


def test_the_gradient_at_a_nearly_certain_label_survives_bf16() -> None:
    # p = 1 - 3e-4 rounds to 1 in bf16, so p - 1 taken after rounding would be 0.
    logits = torch.tensor([[8.0, 0.0]], dtype=torch.bfloat16)
    cross_entropy(
        logits, torch.tensor([0]), torch.ones(1), TensorParallel(), ON_CPU, first=0, with_grad=True
    )
    wanted = torch.sigmoid(torch.tensor(-8.0)).item()
    assert logits[0].tolist() == pytest.approx([-wanted, wanted], rel=2**-8)


def test_ranks_that_disagree_about_a_call_are_told_so() -> None:
    def member(comm: ThreadComm) -> None:
        comm.all_reduce(torch.zeros(2 + comm.rank))

    with pytest.raises(RuntimeError, match="different calls"):
        run_ranks(2, member)
