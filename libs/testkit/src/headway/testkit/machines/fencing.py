"""Finds writes to the shared folder by a machine that had already lost the run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from headway.testkit.bed.node import Node
from headway.testkit.bed.writes import Write, Writes

EVENTS = "SELECT unix_s, epoch, name, fields FROM events WHERE id >= ? ORDER BY id"
"""The journal's rows for ``writes_after_fencing``, from the event before the fault on."""
OF_DRIVER = ("-m headway.controller driver", "-m headway.health monitor")


def writes_after_fencing(
    events: Sequence[tuple[float, int, str, str]],
    writes: Writes,
    node: Node,
    *,
    leads: bool = False,
    apart_from: Path | None = None,
) -> list[str]:
    """Return the writes of a machine after it was fenced, according to the journal.

    They are writes of the machine's driver after another one led, and of any of its processes from
    its fencing to its return. What fences a lost machine with ranks is the record of the next
    generation in the checkpoints folder, which is there before the journal's event. If only the
    driver was replaced, as in a cut of the control network, the machine's ranks still take part and
    may write.

    Args:
        events: of the journal since the fault, by ``EVENTS``.
        writes: of all machines.
        node: the machine.
        leads: it has the driver, which continues to lead and may write, as on a machine that was
            given up for its fabric.
        apart_from: a file that commands of the cluster's operator write.

    Raises:
        HeadwayError: not all writes are known.
    """
    times = {
        name: unix_s
        for unix_s, _, name, fields in reversed(events[1:])
        if json.loads(fields).get("node") == node.index
    }
    led_anew = min((at for at, epoch, *_ in events if epoch > events[0][1]), default=math.inf)
    lost, back = times.get("node_lost", math.inf), times.get("node_returned", math.inf)
    fenced = min(
        (at for at, _, name, _ in events if name == "generation" and at > lost), default=lost
    )

    def since(one: Write) -> float:
        is_driver = any(words in one.command for words in OF_DRIVER)
        if is_driver and leads:
            return led_anew
        return min(fenced, led_anew) if is_driver or not one.command else fenced

    return [
        f"{one.unix_s - since(one):.2f} s: {one.path} by {_program(one)}"
        for one in writes.of(node)
        if since(one) < one.unix_s < back and one.path != str(apart_from)
    ]


def _program(write: Write) -> str:
    return write.command.partition(" -m ")[2].partition(" --")[0] or write.command or "it ended"
