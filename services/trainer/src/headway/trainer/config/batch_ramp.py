"""The batch-size ramp: sequences of a step as a function of the sequences consumed before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.common.errors import ConfigError


@dataclass(frozen=True)
class BatchRamp:
    """Grows the global batch from ``start`` to ``full`` in equal increments.

    It does so while the first ``samples`` sequences are consumed, as Megatron-LM's
    ``--rampup-batch-size`` does.

    A pure function of integers: all ranks, a resumed run and the console get the same numbers.
    """

    start: int
    increment: int
    samples: int
    full: int

    @classmethod
    def of(cls, numbers: Sequence[int], full: int) -> BatchRamp:
        """``train.batch_ramp`` up to ``train.global_batch_size``; no numbers, no ramp.

        Raises:
            ConfigError: the numbers describe no ramp.
        """
        if not numbers:
            return cls(full, 1, 0, full)
        text = f"train.batch_ramp={list(numbers)}"
        if len(numbers) != 3 or min(numbers) < 1:
            raise ConfigError(
                f"{text} is not [start, increment, samples], each 1 or more",
                remedy="for example [4, 4, 2000], or [] for no ramp",
            )
        start, increment, samples = numbers
        if start >= full or (full - start) % increment:
            raise ConfigError(
                f"{text} does not lead to train.global_batch_size={full}",
                remedy="use a smaller start, and an increment that divides the difference",
            )
        return cls(start, increment, samples, full)

    def size(self, consumed: int) -> int:
        """Sequences of the step before which ``consumed`` were consumed."""
        if consumed >= self.samples:
            return self.full
        num_increments = (self.full - self.start) // self.increment
        return self.start + consumed * num_increments // self.samples * self.increment

    def consumed(self, steps: int) -> int:
        """Sequences that the first ``steps`` steps of a run consume, skipped ones included.

        >>> BatchRamp(start=4, increment=4, samples=24, full=12).consumed(5)
        40
        """
        total = 0
        while steps > 0 and total < self.samples:
            total += self.size(total)
            steps -= 1
        return total + max(0, steps) * self.full

    def sizes(self, steps: int) -> list[int]:
        """Sequences of each of the first ``steps`` steps of a run."""
        found, total = [], 0
        for _ in range(steps):
            found.append(self.size(total))
            total += found[-1]
        return found
