"""What a machine that has lost a run still changes in the folder that all machines share."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from headway.testkit.bed.node import Node
from headway.testkit.bed.writes import Writes

EVENTS = "SELECT unix_s, epoch, name, fields FROM events WHERE id >= ? ORDER BY id"
"""Of a journal: the rows for ``writes_after_fencing``, from the event before the fault on."""


def writes_after_fencing(
    events: Sequence[tuple[float, int, str, str]], writes: Writes, node: Node
) -> list[str]:
    """From the moment in which the journal has the machine lost or has a new driver, to that of the
    machine's return, or to now.

    Raises:
        ValueError: it was not fenced, by the journal.
        HeadwayError: not all writes are known.
    """
    of_node = {
        name: unix_s
        for unix_s, _, name, fields in reversed(events)
        if json.loads(fields).get("node") == node.index
    }
    new_driver = [unix_s for unix_s, epoch, *_ in events if epoch > events[0][1]]
    fenced = min(new_driver + [at for name, at in of_node.items() if name == "node_lost"])
    back = of_node.get("node_returned", math.inf)
    return [
        f"{one.unix_s - fenced:.2f} s: {one.path} by {one.command or 'an ended process'}"
        for one in writes.of(node)
        if fenced < one.unix_s < back
    ]
