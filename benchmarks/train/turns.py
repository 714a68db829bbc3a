"""The worker's end of a measurement: it does steps when it is its turn, and reports each turn.

Orders come as JSON lines on stdin, reports leave as JSON lines on what was stdout; whatever else a
library prints goes to stderr. Between turns a worker waits for input and uses no CPU.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Finished(BaseException):
    """There are no more orders. Not an ``Exception``: no step may take it for a failure."""


Step = Callable[[int], float | None]
"""Makes one step, whose number it is given; the loss, None on a process that does not have it."""


class Turns:
    """``play`` makes steps in turns. Who is called back after each step instead calls ``ready``,
    ``begin`` and ``done`` itself; these raise ``Finished`` when the measurement is over."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._left = 0
        self._began_s = 0.0
        self._cpu_s = 0.0
        self._ends: list[float] = []
        self._losses: list[float | None] = []
        self.facts: dict[str, Any] = {}
        """More to report after the next turn."""

    def play(self, build: Callable[[], Step]) -> None:
        """Build what makes the steps once the first turn has come, and make them."""
        self.ready()
        self.begin()
        step = build()
        for number in itertools.count():
            self.done(step(number))

    def ready(self) -> None:
        """Report that everything is imported; ``begin`` comes before building."""
        self.send({"ready": True, "resident_kib": memory_kib("VmRSS")})

    def begin(self) -> None:
        """Wait for the first order."""
        self._next_order()

    def done(self, loss: float | None) -> None:
        """A step is complete; reports the turn if it was its last step.

        ``loss`` is None on a process that does not have it.
        """
        self._ends.append(time.monotonic())
        self._losses.append(loss)
        self._left -= 1
        if self._left > 0:
            return
        cpu_s = time.process_time() - self._cpu_s
        self.send(
            {
                "began_s": self._began_s,
                "ends_s": self._ends,
                "losses": self._losses,
                "cpu_s": cpu_s,
                "peak_kib": memory_kib("VmHWM"),
                "facts": self.facts,
            }
        )
        self._next_order()

    def send(self, report: dict[str, Any]) -> None:
        """One line to the parent."""
        print(json.dumps(report), file=self._out, flush=True)

    def _next_order(self) -> None:
        line = sys.stdin.readline()
        if not line:
            raise Finished
        order = json.loads(line)
        if order.get("reset_peak"):
            Path("/proc/self/clear_refs").write_text("5")
        self._left = int(order["steps"])
        self._ends, self._losses = [], []
        self._cpu_s, self._began_s = time.process_time(), time.monotonic()


def memory_kib(field: str) -> int:
    """``VmRSS`` or ``VmHWM``, the resident memory of this process now or at its highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    return 0
