"""States why a hang has no culprit, as far as the positions of its ranks show it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headway.common.wire.messages.health import Cause, WorkerSignals
from headway.health.detectors.positions import ANYTHING, UNKNOWN
from headway.health.diagnosis.diagnosis import ranks_in_words
from headway.health.diagnosis.wait_for import Holdup


def reason_of(holdups: Sequence[Holdup], signals: Collection[WorkerSignals]) -> tuple[Cause, str]:
    """The cause, and a sentence for people; ``unknown`` and nothing where it cannot be told.

    A device that is in a pass may compute as well as wait, and of one of which nothing is known no
    more can be said. So where ranks use devices, that all have entered an operation does not show
    that the network is at fault.
    """
    on_device = {one.rank for one in signals if one.device is not None or one.waits == "device"}
    for kind in ("deadlock", "ended", "unreported", "transport"):
        for one in holdups:
            is_sure = not on_device & set(one.ranks) or one.kind in ("ended", "unreported")
            if one.kind == kind and is_sure and one.group != ANYTHING:
                return _in_words(one)
    return "unknown", ""


def _in_words(holdup: Holdup) -> tuple[Cause, str]:
    what, who = f"operation {holdup.sequence} of the {holdup.group}", ranks_in_words(holdup.ranks)
    if holdup.kind == "deadlock":
        return "deadlock", f"{who} wait for each other in a circle, at {what} among others"
    if holdup.kind == "ended":
        return "ended_early", f"{who} ended before {what}, which others wait in"
    if holdup.kind == "unreported":
        known = [rank for rank in holdup.ranks if rank != UNKNOWN]
        members = ranks_in_words(known) if known else "some of its members"
        return "unreported", f"nothing is known of {members}, which {what} waits for"
    return "network", f"all of {who} are in {what}, and none makes progress"
