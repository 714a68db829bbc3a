"""Where virtual stages are: the pipeline rank and the model chunk of each.

Every place that needs to know which stage a chunk is, or who has the next one, asks here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageMap:
    """Virtual stages of a pipeline of ``pp`` ranks, numbered from the embedding to the loss.

    Stages go round the ranks: chunk ``c`` of rank ``r`` is stage ``c * pp + r`` (Megatron-LM, arXiv
    2104.04473, section 2.2.2). In a V they go down the ranks and up again: the second of two chunks
    of rank ``r`` is stage ``2 * pp - 1 - r``, so that rank 0 has the first stage and the last, and
    the last rank hands over to itself (Qi et al., arXiv 2401.10241, section 6).

    >>> StageMap(pp=4).stage(1, chunk=1), StageMap(pp=4).place(5)
    (5, (1, 1))
    >>> StageMap(pp=4, is_v=True).stage(1, chunk=1), StageMap(pp=4, is_v=True).place(6)
    (6, (1, 1))
    """

    pp: int
    is_v: bool = False

    def stage(self, rank: int, chunk: int) -> int:
        """The stage that is ``chunk`` of pipeline rank ``rank``."""
        return chunk * self.pp + self._mirrored(rank, chunk)

    def place(self, stage: int) -> tuple[int, int]:
        """Pipeline rank and chunk of ``stage``."""
        chunk, rank = divmod(stage, self.pp)
        return self._mirrored(rank, chunk), chunk

    def stages_of(self, rank: int, vp: int) -> list[int]:
        """The stages of pipeline rank ``rank``, one for each of its ``vp`` chunks."""
        return [self.stage(rank, chunk) for chunk in range(vp)]

    @property
    def ends(self) -> tuple[int, int]:
        """The pipeline ranks of the first stage and of the last one."""
        return 0, 0 if self.is_v else self.pp - 1

    def _mirrored(self, rank: int, chunk: int) -> int:
        return self.pp - 1 - rank if self.is_v and chunk == 1 else rank
