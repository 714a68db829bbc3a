"""Plays runs without a fault for many steps, with pauses, and counts what is said about them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.campaign.faults import Trace, draw_layout, without_fault
from benchmarks.campaign.live import BEAT_S, CONFIG, Cluster, Fates, alarms
from benchmarks.campaign.play import Player
from benchmarks.campaign.program import What

NUM_STEPS = 40
STEP_S = (0.5, 1.0, 2.0)
PAUSED = 0.1
"""Share of steps in which a rank pauses."""


@dataclass(frozen=True, slots=True)
class Clean:
    """What was said about one healthy run."""

    seed: int
    num_steps: int
    num_pauses: int
    said: tuple[str, ...]


def judge_clean(seed: int, most: int) -> Clean:
    """A healthy run of up to ``most`` ranks.

    Its ranks differ in speed by up to 1.4 and jitter by 20 %, and some pause for up to 0.9 of the
    limit of silence: as a slow disk or a garbage collection makes them, while all others wait.
    """
    chance = random.Random(f"clean {seed}")
    layout, on_device = draw_layout(chance, most), chance.random() < 0.5
    trace = without_fault(layout, seed, on_device, chance.choice((0, 20)), NUM_STEPS)
    step_s = chance.choice(STEP_S)
    even_s = Player(trace.programs, trace.sizes, seed, 1.0).play().end_s / NUM_STEPS
    limit_s = max(CONFIG.silence_floor_s, CONFIG.silence_factor * step_s)
    pauses = _pauses(chance, trace, 0.9 * limit_s)
    scale_s = step_s / even_s
    played = Player(trace.programs, trace.sizes, seed, scale_s, pauses=pauses).play()
    fates = Fates.drawn(chance, iter(sorted(trace.programs)))
    cluster = Cluster(trace, played, fates, chance, step_s)
    said: list[str] = []
    for beat in range(int((played.end_s - 1.0) / BEAT_S)):
        said += [f"{one.kind} of {one.rank}" for one in alarms(cluster.beat(beat * BEAT_S))]
    return Clean(seed, NUM_STEPS, len(pauses), tuple(said))


def _pauses(chance: random.Random, trace: Trace, most_s: float) -> dict[tuple[int, int], float]:
    found = {}
    for _ in range(int(PAUSED * NUM_STEPS)):
        rank = chance.choice(sorted(trace.programs))
        moves = trace.programs[rank]
        places = [index for index, move in enumerate(moves) if move.what is What.WORK]
        found[rank, chance.choice(places)] = chance.uniform(0.3, 1.0) * most_s
    return found
