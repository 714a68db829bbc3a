"""How long the nodes are measured, and when one of them counts as slow."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headway.common.errors import ConfigError
from headway.health.judgement import Thresholds


@dataclass(frozen=True)
class PairwiseConfig:
    """Settings of the pairwise check; times in seconds."""

    burst_s: float = 0.3
    """Duration of one burst in one direction: TCP reaches the rate of a link between machines of
    one data centre within some tens of milliseconds."""

    num_bursts: int = 3
    """Bursts in each direction, of which the fastest one counts: whatever passes only slows one."""

    cpu_burst_s: float = 0.5
    """Duration of one burst of arithmetic, several periods of the kernel's CPU quota (0.1 s)."""

    num_deviations: float = 1.0
    """How far below the others a node must be, and that twice. More would miss bad nodes of small
    fleets: the deviation of three other pairs is known to a factor of two only."""

    least_difference: float = 0.3
    """How far below the others a node must be as well, as a share of their median, 0..1. Of 3,000
    simulated fleets of 8 per case, with a node at half of its rate or none, all are judged right if
    each burst has 10 % noise, and 97 of 100 if the nodes themselves differ by 10 %
    (``python -m benchmarks.pairwise``)."""

    ring_mib: float = 16.0
    """Size of the array that the nodes below one switch sum, in MiB: each passes on nearly twice as
    much, which takes 15 ms at 20 Gbit/s."""

    ring_s: float = 30.0
    """Most time that such a sum may take; a ring that takes longer is cut, and its edges are judged
    by what came until then."""

    answer_s: float = 10.0
    """How long a node may take to answer beyond what its measurement takes."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not value > 0:
                raise ConfigError(f"{one.name} = {value} is not above 0", remedy="give a number")
        if self.least_difference >= 1:
            raise ConfigError(
                f"least_difference = {self.least_difference} is not below 1",
                remedy="give a share of the others' median, such as 0.3",
            )

    @property
    def thresholds(self) -> Thresholds:
        return Thresholds(self.num_deviations, self.least_difference)

    @property
    def link_s(self) -> float:
        """Most time that one link may take; a link so slow that it takes longer is cut."""
        return self.answer_s + 4 * self.burst_s * self.num_bursts

    @property
    def cpu_s(self) -> float:
        """Most time that one node's arithmetic may take; a node may be ten times slower."""
        return self.answer_s + 10 * self.cpu_burst_s * self.num_bursts
