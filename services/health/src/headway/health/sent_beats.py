"""What of a node's state is sent to the monitor.

Where collectives stand is asked only in a hang, so the group tables of ranks that step as usual
stay on their node: of a large run they would be a third of what the monitor receives and decodes.
"""

from __future__ import annotations

from typing import Final

import msgspec
from headway.common.wire.messages.health import AgentBeat, WorkerSignals
from headway.health.config import HealthConfig
from headway.health.detectors.rank_view import RankView, still_s

USUAL_STEPS: Final = 2.0
"""A step that takes more usual ones than this may be held up."""


def as_sent(beat: AgentBeat, config: HealthConfig) -> AgentBeat:
    """The beat without the group tables that nobody would look at."""
    workers = tuple(
        msgspec.structs.replace(worker, groups=())  # type: ignore[type-var]
        if worker.groups and _steps_as_usual(worker, beat.node, config)
        else worker
        for worker in beat.workers
    )
    return msgspec.structs.replace(beat, workers=workers)  # type: ignore[type-var]


def _steps_as_usual(worker: WorkerSignals, node: int, config: HealthConfig) -> bool:
    return (
        not RankView(node, worker).is_suspended(config)
        and still_s(worker) <= config.beat_interval_s
        and worker.step_age_s <= USUAL_STEPS * worker.median_step_s
    )
