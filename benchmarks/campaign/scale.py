"""How long it takes to judge a run of 12,288 ranks in which one rank holds up all others."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

from headway.health.detectors.positions import scene_of
from headway.health.detectors.rank_view import RankView
from headway.health.diagnosis.positions import Scene
from headway.health.diagnosis.wait_for import find_holdups

from benchmarks.campaign.faults import without_fault
from benchmarks.campaign.live import CONFIG
from benchmarks.campaign.play import Player
from benchmarks.campaign.program import Layout, What
from benchmarks.campaign.sight import Sight

LAYOUT = Layout(tp=8, pp=12, dp=128, vp=1, schedule="1f1b", num_micro_batches=2)
GOAL_S = 1.0
AFTER_S = 30.0


def measure(times: int, layout: Layout = LAYOUT) -> dict[str, object]:
    """Seconds for the graph alone, and with the scene that is made of beats."""
    trace = without_fault(layout, 0, on_device=False, first_step=100)
    held = layout.grid.world_size // 2
    moves = trace.programs[held]
    trace.halts[held] = next(i for i, one in enumerate(moves) if one.what is What.WORK)
    trace.faults[held] = "forward"
    played = Player(trace.programs, trace.sizes, 0, 0.1, trace.halts).play()
    views = [
        RankView(rank // 8, Sight(trace, played, rank, 1 << 30, 10.0).at(played.end_s + AFTER_S))
        for rank in trace.programs
    ]
    del played
    gc.collect()
    scenes: list[Scene] = []
    scene_s = _seconds(times, lambda: scenes.append(scene_of(views, CONFIG)))
    found = find_holdups(scenes[-1])
    graph_s = _seconds(times, lambda: find_holdups(scenes[-1]))
    return {
        "ranks": len(views),
        "groups": len(scenes[-1].groups),
        "held": held,
        "found": [f"{one.kind} {list(one.ranks)}" for one in found],
        "is_right": [(one.kind, one.ranks) for one in found] == [("missing", (held,))],
        "graph_s": round(statistics.median(graph_s), 3),
        "scene_s": round(statistics.median(scene_s), 3),
    }


def _seconds(times: int, call: Callable[[], object]) -> list[float]:
    """Processor time of each call."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return taken
