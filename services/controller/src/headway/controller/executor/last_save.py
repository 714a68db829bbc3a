"""Orders to the node's checkpoint store to make durable what memory holds, without the ranks."""

from __future__ import annotations

import threading
import time

from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.wire.client import Client
from headway.common.wire.messages.ckpt_store import Flush, StoreStatus, StoreStatusReply

LIMIT_S = 20.0
"""An executor that was asked to end has 30 s."""
ANSWER_S = 2.0
LOOK_S = 0.1

log = get_logger("executor")


class LastSave(threading.Thread):
    """Started at once; alive while the store at ``endpoint`` writes, ``LIMIT_S`` at most.

    With a ``limit_s`` of 0 it is given the order, and not waited for. Ranks that step on may
    overwrite what is being written: then it is ordered again.
    """

    def __init__(self, endpoint: str, limit_s: float = LIMIT_S) -> None:
        super().__init__(name="last-save", daemon=True)
        self._endpoint, self._limit_s = endpoint, limit_s
        self.start()

    def run(self) -> None:
        """Never raises: a store that does not answer has ended, and did the same by itself."""
        until = time.monotonic() + self._limit_s
        try:
            with Client(self._endpoint) as client:
                status = client.call(Flush(newest=True), StoreStatusReply, timeout_s=ANSWER_S)
                first = max((arena.committed_step for arena in status.arenas), default=-1)
                while status.complete_step < first and time.monotonic() < until:
                    question = StoreStatus() if status.is_saving else Flush(newest=True)
                    status = client.call(question, StoreStatusReply, timeout_s=ANSWER_S)
                    time.sleep(LOOK_S)
        except HeadwayError as error:
            log.info("the checkpoint store takes no order", reason=error.message)
