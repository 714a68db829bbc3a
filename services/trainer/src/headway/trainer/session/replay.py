"""Computes each replica's micro-batches on another one too, to find gradients that are wrong.

A bit that changes in a gradient before it is added up reaches all replicas alike, so no comparison
of their weights can find it. In every ``health.replay_every``th step each replica therefore
computes the micro-batches of the next one before its own, and digests of both gradients, taken
before anything is added to them, are compared. Where they differ, two more passes show who was
wrong (``opinions``), and the step is computed again before its gradients are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from headway.common.log import get_logger
from headway.common.node.flight_record import WAITING
from headway.common.plan.schedule.actions import Kind
from headway.trainer.comm.agreement import gathered, least, total
from headway.trainer.comm.nccl import read_when_ready
from headway.trainer.data.batches import MicroBatch
from headway.trainer.model.positions import Borders
from headway.trainer.session.context import StepContext
from headway.trainer.session.opinions import Judgement, Row, agree, judge
from headway.trainer.session.origin import ranks_in_words
from headway.trainer.session.repeat import MakePass, repeat_pass
from headway.trainer.state.digest import WORD_BYTES, digest, halves

log = get_logger("replay")


class Replays:
    """The comparisons of one rank in one generation. All ranks call each method together."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._dp = context.groups["dp"]
        self._every = context.config.health.replay_every
        self._noted: list[list[torch.Tensor]] = []
        """Digests of this rank's gradients, by pass."""
        self._names: list[str] = []
        if self._every and context.device.type == "cuda" and not context.config.train.deterministic:
            self._give_up("this needs train.deterministic on GPUs")

    @property
    def are_on(self) -> bool:
        """Whether gradients are compared in any step."""
        return bool(self._every)

    def is_due(self, step: int) -> bool:
        """Whether gradients are compared in ``step``."""
        return bool(self._every) and (step + 1) % self._every == 0

    def begin(self, step: int, batches: Sequence[MicroBatch], make_pass: MakePass) -> None:
        """Compute the micro-batches of the next replica; the parameters must be complete.

        Raises:
            Aborted: the generation was fenced. RuntimeError: a peer failed.
        """
        self._noted, self._names = [[], []], []
        self._compute(1, step, batches, make_pass)

    def note(self, chunk: int, bucket: int, number: int = 0) -> None:
        """Take the digests of a bucket's gradients, before anything is added to them."""
        for name, gradient in self._gradients(chunk, bucket):
            if number == 1:
                self._names.append(name)
            self._noted[number].append(digest_of(gradient))

    def differ(self, step: int) -> bool:
        """Whether any replica's gradients are not what another one computed; equal on all ranks.

        Raises:
            Aborted: the generation was fenced. RuntimeError: a peer failed.
        """
        context, groups, agrees = self._context, self._context.groups, agree(self._rows(step))
        with context.agreement(step):
            least_one = least(groups.every_rank, groups.channels, float(agrees), context.device)
        return least_one < 1

    def find(self, step: int, batches: Sequence[MicroBatch], make_pass: MakePass) -> str:
        """Compute the micro-batches twice more, and say who was wrong, as a clause; "" elsewhere.

        It is said by the rank that was, or by the first one of those that may have been. The
        gradients are not the step's afterwards.

        Raises:
            Aborted: the generation was fenced. RuntimeError: a peer failed.
        """
        if self._context.rank == 0:
            log.warning("gradients of replicas differ: the step is computed again", step=step)
        for number in (2, 3):
            self._noted.append([])
            self._compute(number, step, batches, make_pass)
        found = judge(self._rows(step))
        dp = self._dp.size
        counts = [0.0] * (dp + 2)
        if self._dp.rank == 0:
            for replica in found.wrong:
                counts[replica] = 1.0
            counts[dp], counts[dp + 1] = float(bool(found.unsure)), float(found.is_random)
        context, groups = self._context, self._context.groups
        with context.agreement(step):
            counts = total(groups.every_rank, groups.channels, counts, context.device)
        if counts[dp + 1]:
            self._give_up("they differ each time they are computed")
            return ""
        return self._clause(found, [int(one) for one in counts[:dp]], int(counts[dp]))

    def _clause(self, found: Judgement, wrong: Sequence[int], num_unsure: int) -> str:
        """``wrong`` has the number of ranks of each replica that computed something wrong."""
        context, me = self._context, self._dp.rank
        rank, is_first = context.rank, context.place.tp == context.place.pp == 0
        mine = found.wrong.get(me, frozenset())
        if mine and wrong[me] == 1 and self._is_own(mine):
            what = f"the gradient of {self._names[min(mine)]}, of rank {rank},"
            return f"{what} differs from a recomputation on the same tokens"
        if (wrong[me] == 1 and mine) or (wrong[me] > 1 and is_first):
            return f"the gradients of replica {me}, of {self._ranks_of([me])}, differ"
        if any(wrong) or not found.unsure or me != found.unsure[0]:
            return ""
        if num_unsure == 1:
            members = context.config.parallel.grid.group("dp", rank)
            ranks = ranks_in_words([members[one] for one in found.unsure])
            return f"the gradient of {self._names[found.parameter]}, of {ranks}, differs"
        return f"the gradients, of {self._ranks_of(found.unsure)}, differ" if is_first else ""

    def _is_own(self, wrong: frozenset[int]) -> bool:
        """Whether what differs was computed by this rank, for certain.

        A wrong value from another rank of the replica changes the gradients of all layers that it
        passes here. Behind the first layer there are few: its norm, and the embedding.
        """
        grid = self._context.config.parallel.grid
        if grid.tp == grid.pp == 1:
            return True
        (name, *others) = (self._names[one] for one in wrong)
        may_be_passed_on = name.startswith("embedding") or "norm" in name
        return not others and not (grid.tp > 1 and may_be_passed_on)

    def _ranks_of(self, replicas: Sequence[int]) -> str:
        grid = self._context.config.parallel.grid
        ranks = [r for r in range(grid.world_size) if grid.coordinates(r).dp in replicas]
        return ranks_in_words(ranks)

    def _compute(
        self, number: int, step: int, batches: Sequence[MicroBatch], make_pass: MakePass
    ) -> None:
        """Do pass ``number``, which is on the micro-batches of another replica."""
        others = [self._of_other(number, step, batch) for batch in batches]
        repeat_pass(
            self._context,
            step,
            others,
            make_pass,
            after_bucket=lambda chunk, bucket: self.note(chunk, bucket, number),
        )

    def _of_other(self, number: int, step: int, batch: MicroBatch) -> MicroBatch:
        """The micro-batch of the replica ``number`` places behind this one."""
        borders = batch.borders
        marks = None if borders is None else _marks(borders).to(self._context.device)
        tokens, labels, mask, marks = (
            None if one is None else self._exchanged(number, step, one)
            for one in (batch.tokens, batch.labels, batch.mask, marks)
        )
        borders = None if marks is None else _borders(marks)
        return replace(batch, tokens=tokens, labels=labels, mask=mask, borders=borders)

    def _exchanged(self, number: int, step: int, mine: torch.Tensor) -> torch.Tensor:
        rows = self._gathered(step, mine.reshape(-1)).view(self._dp.size, *mine.shape)
        return rows[(self._dp.rank + number) % self._dp.size].clone()  # and free the others

    def _gradients(self, chunk: int, bucket: int) -> list[tuple[str, torch.Tensor]]:
        """Those of each parameter, and with the first bucket the tied table's."""
        flat = self._context.flats[self._context.buckets_of(chunk)[bucket]]
        found = [(one.spec.name, flat.grads[one.start : one.stop]) for one in flat.placed]
        apart = None if bucket else self._context.tied.apart(chunk)
        return found if apart is None else [*found, ("the tied table", apart)]

    def _rows(self, step: int) -> list[Row]:
        """What each replica's rank of this kind has noted."""
        passes, size = len(self._noted), len(self._names)
        mine = torch.stack([halves(one) for noted in self._noted for one in noted])
        everyone = self._gathered(step, mine.reshape(-1))
        values = read_when_ready(everyone, self._context.groups.channels)
        pairs = list(zip(values[::2], values[1::2], strict=True))
        return [
            [pairs[(dp * passes + n) * size : (dp * passes + n + 1) * size] for n in range(passes)]
            for dp in range(self._dp.size)
        ]

    def _gathered(self, step: int, mine: torch.Tensor) -> torch.Tensor:
        with self._context.recorder.record(Kind.ALL_GATHER, step=step, flags=WAITING):
            return gathered(self._dp, mine)

    def _give_up(self, why: str) -> None:
        if self._context.rank == 0:
            log.warning(
                f"gradients are not compared: {why}",
                remedy="set train.deterministic=true, or health.replay_every=0",
            )
        self._every = 0


def digest_of(values: torch.Tensor) -> torch.Tensor:
    """The digest of values that need not begin and end with a word of it."""
    values = values.reshape(-1)
    offset = values.storage_offset() * values.element_size()
    if offset % WORD_BYTES == 0 and values.nbytes % WORD_BYTES == 0:
        return digest(values)
    padded = values.new_zeros(-(-values.nbytes // WORD_BYTES) * WORD_BYTES // values.element_size())
    padded[: len(values)] = values
    return digest(padded)


def _marks(borders: Borders) -> torch.Tensor:
    """Borders as a tensor [micro_batch, seq + 1] with a 1 at each."""
    marks = torch.zeros((len(borders), borders[0][-1] + 1), dtype=torch.uint8)
    for row, places in zip(marks, borders, strict=True):
        row[list(places)] = 1
    return marks


def _borders(marks: torch.Tensor) -> Borders:
    return tuple(tuple(row.nonzero().flatten().tolist()) for row in marks.cpu())
