"""How many thread blocks, hence SMs, NCCL's communicators may occupy on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headway.common.log import get_logger
from headway.trainer.config import ParallelConfig

POLICIES = {"efficiency": 1, "zero": 2}
"""The values of ``NCCL_CTA_POLICY_*`` in nccl.h."""

log = get_logger("nccl")


@dataclass(frozen=True)
class Ctas:
    """Limits of thread blocks; ``NCCL_MAX_CTAS`` and ``NCCL_CTA_POLICY`` override them.

    Args:
        pair: most blocks of the communicator of a pair of stages. A receive that is posted ahead
            spins on them until its message comes, and NCCL's blocks share an SM with nothing else,
            so with four lanes NCCL's default (up to 32 blocks each) takes the SMs from the matrix
            products. The communicators of collectives have no limit.
        policy: of every communicator (NCCL 2.27).
    """

    pair: int = 4
    policy: Literal["default", "efficiency", "zero"] = "default"

    @classmethod
    def of(cls, parallel: ParallelConfig) -> Ctas:
        """The limits that a run's configuration sets."""
        return cls(parallel.pair_ctas, parallel.cta_policy)

    def put_into(self, config: Any, *, is_pair: bool) -> None:
        """Fill in a communicator's ``ncclConfig_t`` as torch shows it."""
        if is_pair:
            config.max_ctas = self.pair
        if self.policy == "default":
            return
        if hasattr(config, "cta_policy"):
            config.cta_policy = POLICIES[self.policy]
        else:
            log.warning("this torch knows no parallel.cta_policy", ignored=self.policy)
