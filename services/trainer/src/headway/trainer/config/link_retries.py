"""How often, and after how long, a network adapter resends what a lost link swallowed.

An adapter resends a packet that is not acknowledged after ``4.096 us x 2^timeout``, ``retries``
times; then NCCL reports an error. The product is the time that a link may be away (NCCL user guide,
``NCCL_IB_TIMEOUT``; InfiniBand specification, volume 1, Local Ack Timeout).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.common.errors import ConfigError

ACK_UNIT_US = 4.096
SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 14, 22
"""Values of ``NCCL_IB_TIMEOUT``: NCCL's default before 2.14, below which congestion looks like a
loss, and the highest that every version of NCCL documents."""
FEWEST_RETRIES, MOST_RETRIES = 4, 7
"""Retry counts: enough for several losses in a row, and the most that adapters allow."""


@dataclass(frozen=True)
class LinkRetries:
    """Values of ``NCCL_IB_TIMEOUT`` and ``NCCL_IB_RETRY_CNT``; by default those of NCCL since 2.23.

    >>> LinkRetries.outlasting(10.0)
    LinkRetries(timeout=19, retries=5)
    """

    timeout: int = 20
    retries: int = 7

    @property
    def ack_timeout_s(self) -> float:
        """Time until a packet is sent again; infinite for 0 and from 32 on."""
        return ACK_UNIT_US * 1e-6 * 2**self.timeout if 0 < self.timeout < 32 else math.inf

    @property
    def window_s(self) -> float:
        """How long a link may be away without an error of NCCL."""
        return self.ack_timeout_s * self.retries

    @classmethod
    def outlasting(cls, flap_s: float) -> LinkRetries:
        """The shortest resend time with which the retries last for ``flap_s``.

        The sooner an adapter resends, the sooner it finds that the link is back.

        Raises:
            ConfigError: ``flap_s`` is not above 0, or longer than the highest values last.
        """
        longest = cls(LONGEST_TIMEOUT, MOST_RETRIES)
        if not 0 < flap_s <= longest.window_s:
            raise ConfigError(
                f"parallel.flap_s={flap_s:g} is out of range",
                remedy=f"use seconds above 0, at most {math.floor(longest.window_s)}: "
                f"NCCL_IB_TIMEOUT={longest.timeout} and NCCL_IB_RETRY_CNT={longest.retries} "
                "do not last longer",
            )
        for timeout in range(SHORTEST_TIMEOUT, LONGEST_TIMEOUT):
            retries = math.ceil(flap_s / cls(timeout).ack_timeout_s)
            if retries <= MOST_RETRIES:
                return cls(timeout, max(FEWEST_RETRIES, retries))
        return cls(LONGEST_TIMEOUT, math.ceil(flap_s / cls(LONGEST_TIMEOUT).ack_timeout_s))
