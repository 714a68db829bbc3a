"""Heads of keys and values that several tensor-parallel ranks share, each with a copy.

With more ranks than such heads, ``tp / kv_heads`` neighbouring ranks hold the same one (as
Megatron-LM and vLLM do). Each computes the gradient that its own queries give; the sum over those
that share the head is the gradient of every copy.
"""

from __future__ import annotations

import torch
from headway.trainer.comm.interface import Comm
from headway.trainer.state.flat import FlatChunk


def sum_copies(comm: Comm, replicated: torch.Tensor, flat: FlatChunk) -> None:
    """Sum ``replicated`` over tp, and each shared head's gradients over the ranks that hold it.

    It is one all-reduce, which gives every rank the same bits: each head has a part of the buffer,
    and ranks without it leave this part zero. That takes temporary memory for the gradients of all
    heads of keys and values, and no group besides tp's.

    Raises:
        Aborted: the generation was fenced. RuntimeError: a peer failed.
    """
    spec = flat.copied[0].spec
    views = [flat.grads[place.start : place.stop] for place in flat.copied]
    sizes = [len(view) for view in views]
    total = replicated.new_zeros(len(replicated) + spec.tp_size * sum(sizes))
    common, heads = total[: len(replicated)], total[len(replicated) :].view(spec.tp_size, -1)
    own = heads[spec.tp_rank]
    common.copy_(replicated)
    torch.cat(views, out=own)
    comm.all_reduce(total).wait()
    replicated.copy_(common)
    for view, summed in zip(views, own.split(sizes), strict=True):  # type: ignore[no-untyped-call]
        view.copy_(summed)
