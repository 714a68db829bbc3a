"""What the driver answers when it is asked how the run stands."""

from __future__ import annotations

from headway.common.wire.messages.driver import RankStatus, Status
from headway.trainer.control.state import RunState


def status_of(state: RunState, name: str, *, paused: bool, detail: str) -> Status:
    """The run as the driver sees it now; ``detail`` says why a run is over."""
    return Status(
        name=name,
        phase=state.outcome or state.phase,
        epoch=state.epoch,
        generation=state.generation,
        step=state.step,
        steps=state.steps,
        paused=paused,
        commands=len(state.commands),
        applied=state.applied,
        ranks=tuple(_rank(state, rank, home) for rank, home in sorted(state.rank_nodes.items())),
        nodes={number: node.status for number, node in state.nodes.items()},
        services={number: node.services for number, node in state.nodes.items()},
        detail=detail,
    )


def _rank(state: RunState, rank: int, home: int) -> RankStatus:
    view = state.worker(state.members.get(rank))
    if view is None:
        return RankStatus(rank=rank, node=home, worker="", pid=0, status="missing", step=0)
    return RankStatus(rank=rank, node=home, worker=view.worker, pid=view.pid, status=view.status, step=view.step)
