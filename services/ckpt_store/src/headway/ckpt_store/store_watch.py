"""Observes whether the node's checkpoint store makes progress.

What it observes decides how long to wait for the store.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from headway.common.errors import HeadwayError
from headway.common.polling import HighWater
from headway.common.wire.client import Client
from headway.common.wire.messages.ckpt_store import StoreStatus, StoreStatusReply
from headway.common.wire.messages.service import Drain, Drained

STILL_LIMIT_S = 60.0
"""A store that has not written or checked anything for this long is given up."""
ASK_S = 0.5
ANSWER_S = 0.25
LOOK_S = 0.02


class StoreWatch:
    """Asks the store at ``endpoint`` for its progress; no answer counts as no progress.

    To be used by one thread only.
    """

    def __init__(self, endpoint: str) -> None:
        self._client = Client(endpoint)
        self._ask_at_s = 0.0
        self._mark = HighWater()
        self.status: StoreStatusReply | None = None
        """The newest answer."""

    def ask(self) -> StoreStatusReply | None:
        """Its current status; None without an answer."""
        with contextlib.suppress(HeadwayError):
            self.status = self._client.call(StoreStatus(), StoreStatusReply, timeout_s=ANSWER_S)
            return self.status
        return None

    def end(self) -> bool:
        """Ask it to end, after what ranks want durable; False without an answer."""
        with contextlib.suppress(HeadwayError):
            self._client.call(Drain(), Drained, timeout_s=ANSWER_S)
            return True
        return False

    def moved(self) -> bool:
        """Whether it has made progress; asks at most every ``ASK_S``.

        A store that is restarted repeatedly does not count as making progress (``HighWater``).
        """
        if time.monotonic() < self._ask_at_s:
            return False
        now = self.ask()
        self._ask_at_s = time.monotonic() + ASK_S
        return now is not None and self._mark.rises(now.progress)

    def wait(
        self,
        done: Callable[[], bool],
        *,
        check: Callable[[], object] = lambda: None,
        still_s: float | None = None,
    ) -> bool:
        """Wait until ``done``; False once the store has made no progress for ``still_s``.

        ``check`` is called meanwhile and may raise.
        """
        limit_s = STILL_LIMIT_S if still_s is None else still_s
        self._mark = HighWater()
        self._ask_at_s = time.monotonic() + ASK_S  # not asked if it is done already
        give_up_s = time.monotonic() + limit_s
        while not done():
            check()
            if self.moved():
                give_up_s = time.monotonic() + limit_s
            elif time.monotonic() > give_up_s:
                return False
            time.sleep(LOOK_S)
        return True

    def close(self) -> None:
        """Disconnect."""
        self._client.close()
