"""Compute order of every pipeline schedule, as pure functions of pp, vp and micro-batches.

Communication is not here; ``lower`` adds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from headway.common.errors import ConfigError
from headway.common.plan.schedule.actions import Action, Kind, Schedule

Order = list[Action]


def generate(name: str, *, pp: int, vp: int = 1, num_micro_batches: int) -> Schedule:
    """The schedule called ``gpipe``, ``1f1b``, ``interleaved``, ``zb-h1`` or ``zb-v``.

    Without a pipeline (pp 1) ``1f1b`` takes chunks too: a micro-batch goes forward through all and
    back, so that the reduction of one chunk's gradients runs under the backward of the one before,
    as with the buckets of DDP (Li et al., arXiv 2006.15704, section 3.2.3).

    Raises:
        ConfigError: an unknown name, a count below 1, or a combination the schedule cannot serve.
    """
    makers: dict[str, Callable[..., Schedule]] = {
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "interleaved": interleaved_1f1b,
        "zb-h1": zb_h1,
        "zb-v": zb_v,
    }
    if name not in makers:
        raise ConfigError(f"unknown schedule {name!r}", remedy=f"use one of {', '.join(makers)}")
    if name == "interleaved" or (name == "1f1b" and pp == 1):
        found = interleaved_1f1b(pp=pp, vp=vp, num_micro_batches=num_micro_batches)
        return replace(found, name=name)
    wanted = 2 if name == "zb-v" else 1
    if vp != wanted:
        raise ConfigError(
            f"vp={vp} with schedule {name!r} and pp={pp}",
            remedy=f"use schedule 'interleaved' or vp={wanted}",
        )
    return makers[name](pp=pp, num_micro_batches=num_micro_batches)


def gpipe(*, pp: int, num_micro_batches: int) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv 1811.06965)."""
    order = _forwards(num_micro_batches) + _backwards(num_micro_batches)
    return _schedule("gpipe", pp, 1, num_micro_batches, [order] * pp)


def one_f_one_b(*, pp: int, num_micro_batches: int) -> Schedule:
    """One forward, one backward (PipeDream-Flush; Megatron-LM, arXiv 2104.04473, section 2.2.1)."""
    ranks = []
    for rank in range(pp):
        warmup = min(pp - rank - 1, num_micro_batches)
        forwards, backwards = _forwards(num_micro_batches), _backwards(num_micro_batches)
        ranks.append(_weave(forwards, backwards, warmup))
    return _schedule("1f1b", pp, 1, num_micro_batches, ranks)


def interleaved_1f1b(*, pp: int, vp: int, num_micro_batches: int) -> Schedule:
    """1F1B over ``vp`` chunks per rank (Megatron-LM, arXiv 2104.04473, section 2.2.2).

    Micro-batches go in groups of ``pp`` through one chunk, then the next; the warm-up of rank r is
    ``2 (pp - r - 1) + (vp - 1) pp`` forwards, or all of them if there are fewer. (Megatron-LM once
    ran every forward first when there are just ``pp`` micro-batches; that holds more activations
    for the same bubble.)

    Raises:
        ConfigError: ``num_micro_batches`` is not a multiple of ``pp``.
    """
    _check(pp, vp, num_micro_batches)
    if num_micro_batches % pp:
        raise ConfigError(
            f"{num_micro_batches} micro-batches with pp={pp} and the interleaved schedule",
            remedy=f"use a multiple of {pp} micro-batches",
        )
    total = num_micro_batches * vp
    ranks = []
    for rank in range(pp):
        warmup = pp - rank - 1 if vp == 1 else 2 * (pp - rank - 1) + (vp - 1) * pp
        forwards = [_virtual(Kind.FORWARD, k, pp, vp) for k in range(total)]
        backwards = [_virtual(Kind.BACKWARD, k, pp, vp) for k in range(total)]
        ranks.append(_weave(forwards, backwards, min(warmup, total)))
    return _schedule("interleaved", pp, vp, num_micro_batches, ranks)


def zb_h1(*, pp: int, num_micro_batches: int) -> Schedule:
    """Zero-bubble ZB-H1 (arXiv 2401.10241, section 2.1): weight gradients fill the gaps.

    Rank r keeps up to r weight gradients waiting, so that no rank holds more activations
    than rank 0 of 1F1B.
    """
    ranks = []
    for rank, order in enumerate(one_f_one_b(pp=pp, num_micro_batches=num_micro_batches).ranks):
        split: Order = []
        for action in order:
            if action.kind is Kind.FORWARD:
                split.append(action)
                continue
            split.append(Action(Kind.BACKWARD_INPUT, 0, action.micro_batch))
            if action.micro_batch >= rank:
                split.append(Action(Kind.BACKWARD_WEIGHT, 0, action.micro_batch - rank))
        first = max(0, num_micro_batches - rank)
        split += [Action(Kind.BACKWARD_WEIGHT, 0, mb) for mb in range(first, num_micro_batches)]
        ranks.append(split)
    return _schedule("zb-h1", pp, 1, num_micro_batches, ranks)


def zb_v(*, pp: int, num_micro_batches: int) -> Schedule:
    """ZB-V (arXiv 2401.10241, section 6; V-ZB of 2405.15362, figure 4): no bubble, 1F1B's memory.

    Each rank has two chunks, placed in a V, and passes of either fill the gaps of the other. If a
    forward, an input gradient and a weight gradient of a chunk take equal times and there are
    ``2 pp - 1`` micro-batches or more, no rank idles between its first pass and its last. No rank
    keeps more than ``2 pp`` pairs of chunk and micro-batch, which are ``pp`` micro-batches of a
    whole stage. Fewer micro-batches are taken in the same order, without the later ones.
    """
    ranks = []
    for rank in range(pp):
        rounds = max(num_micro_batches, 2 * pp - 1) - 2 * pp + 1 + rank
        passes = (
            ["F0"] * (2 * (pp - rank) - 1)
            + ["F1", "F0"] * rank
            + ["F1", "B1", "W1"] * (pp - rank)
            + ["F0", "B0", "W0", "F1", "B1", "W1"] * rounds
            + ["B0", "W0", "F1", "B1", "W1"] * (pp - rank - 1)
            + ["B0", "B1"] * rank
            + ["B0", "W0"] * (pp - rank)
            + ["W1"] * rank
            + ["W0"] * rank
        )
        ranks.append(_numbered(passes, num_micro_batches))
    return replace(_schedule("zb-v", pp, 2, num_micro_batches, ranks), is_v=True)


def forward_only(*, pp: int, vp: int = 1, num_micro_batches: int, is_v: bool = False) -> Schedule:
    """Forward only, any number of micro-batches through every chunk: validation and sampling.

    With chunks in a V, rank r begins with ``2 (pp - r) - 1`` forwards of the first; by then the
    second one's input is there, and the two take turns.
    """
    _check(pp, vp, num_micro_batches)
    if is_v:
        first, second = _forwards(num_micro_batches), _forwards(num_micro_batches, chunk=1)
        warmups = [min(2 * (pp - rank - 1), num_micro_batches) for rank in range(pp)]
        ranks = [_weave(first, second, warmup) for warmup in warmups]
        found = _schedule("forward-only", pp, vp, num_micro_batches, ranks, forward_only=True)
        return replace(found, is_v=True)
    order = [
        Action(Kind.FORWARD, chunk, mb)
        for first in range(0, num_micro_batches, pp)
        for chunk in range(vp)
        for mb in range(first, min(first + pp, num_micro_batches))
    ]
    return _schedule("forward-only", pp, vp, num_micro_batches, [order] * pp, forward_only=True)


def bubble_fraction(*, pp: int, num_micro_batches: int, vp: int = 1) -> float:
    """Idle time of one 1F1B step over its ideal compute time, dimensionless.

    Interleaving splits each stage into ``vp`` chunks and divides the bubble by ``vp`` (Megatron-LM,
    arXiv 2104.04473, section 2.2).

    >>> bubble_fraction(pp=4, num_micro_batches=8)
    0.375

    Raises:
        ConfigError: a count below 1.
    """
    _check(pp, vp, num_micro_batches)
    return (pp - 1) / (num_micro_batches * vp)


def _weave(forwards: Order, backwards: Order, warmup: int) -> Order:
    """``warmup`` forwards, then forward and backward in turn, then the remaining backwards."""
    order = forwards[:warmup]
    for index, action in enumerate(forwards[warmup:]):
        order += [action, backwards[index]]
    return order + backwards[len(forwards) - warmup :]


def _virtual(kind: Kind, k: int, pp: int, vp: int) -> Action:
    """The k-th of a rank's virtual micro-batches.

    They come in groups of ``pp`` micro-batches, chunk after chunk.
    """
    chunk = k % (pp * vp) // pp
    if kind is Kind.BACKWARD:
        chunk = vp - 1 - chunk
    return Action(kind, chunk, k // (pp * vp) * pp + k % pp)


def _numbered(passes: list[str], num_micro_batches: int) -> Order:
    """The actions of ``passes``: kind (F, B for the input, W) and chunk.

    Passes of one name take micro-batch after micro-batch; those beyond the last are left out.
    """
    kinds = {"F": Kind.FORWARD, "B": Kind.BACKWARD_INPUT, "W": Kind.BACKWARD_WEIGHT}
    counts: Counter[str] = Counter()
    order: Order = []
    for one in passes:
        if counts[one] < num_micro_batches:
            order.append(Action(kinds[one[0]], int(one[1]), counts[one]))
        counts[one] += 1
    return order


def _forwards(count: int, chunk: int = 0) -> Order:
    return [Action(Kind.FORWARD, chunk, mb) for mb in range(count)]


def _backwards(count: int) -> Order:
    return [Action(Kind.BACKWARD, 0, mb) for mb in range(count)]


def _schedule(
    name: str,
    pp: int,
    vp: int,
    num_micro_batches: int,
    ranks: list[Order],
    *,
    forward_only: bool = False,
) -> Schedule:
    _check(pp, vp, num_micro_batches)  # gpipe and 1f1b call this without checking
    return Schedule(
        name=name,
        pp=pp,
        vp=vp,
        num_micro_batches=num_micro_batches,
        forward_only=forward_only,
        ranks=tuple(tuple(order) for order in ranks),
    )


def _check(pp: int, vp: int, num_micro_batches: int) -> None:
    for name, value in (("pp", pp), ("vp", vp), ("num_micro_batches", num_micro_batches)):
        if value < 1:
            raise ConfigError(f"{name}={value} is below 1", remedy="use 1 or more")
