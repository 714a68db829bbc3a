"""What a phase is: how it looks at the run, why it waits, for how long, and what happens then."""

from __future__ import annotations

import math

from headway.common.decide import Action
from headway.controller.decisions.core import Core


class Phase:
    """One row of the table. It holds nothing: everything is in ``Core``."""

    name = ""

    def look(self, core: Core, node: int | None) -> list[Action]:
        """Do what can be done now; it may enter another phase, which then looks at once.

        Args:
            node: the only node that has changed since the last look, None when anything may have
                changed or orders may be due again.
        """
        raise NotImplementedError

    def limit_s(self, _core: Core) -> float:
        """How long to wait before ``overdue``, and again after it."""
        return math.inf

    def overdue(self, _core: Core) -> list[Action]:
        """The next rung after the limit; ``why`` has been logged."""
        return []

    def why(self, core: Core) -> str:
        """Why the run does not step now, in one sentence; empty while it steps."""
        raise NotImplementedError


def seconds(core: Core) -> str:
    """How long the phase has lasted."""
    return f"{core.clock.now - core.since:.0f} s"


def ranks(numbers: list[int], limit: int = 4) -> str:
    """``rank 1``, ``ranks 1, 2``: shortened where there are many."""
    shown = ", ".join(map(str, numbers[:limit]))
    more = f" and {len(numbers) - limit} more" if len(numbers) > limit else ""
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}{more}"
