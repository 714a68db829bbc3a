"""What does it cost to compare copies of weights? ``python -m benchmarks.copies``.

Ranks are threads of one process over real gloo groups, which train a small model with 1,024 tokens
per rank and step: few, so that the weights are large beside the work of a step. Copies are compared
in every other step of a run, and the process's CPU time of these steps is held against that of the
steps between: the median of the pairs' ratios. By default a run compares in every 20th step, which
costs it a twentieth of that.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from headway.health.config import HealthConfig
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.testkit.trainer.synthetic import synthetic
from headway.trainer.comm.groups import Groups
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session

from benchmarks.counting import WARM_UP, configuration
from benchmarks.report import finish, parser

LAYOUTS = {"dp2": {"dp": 2}, "tp2": {"tp": 2}, "tp2xdp2": {"tp": 2, "dp": 2}}
EVERY = 2
LIMIT_SHARE = 0.004


class StepTimes(StepHooks):
    """CPU time of the process by step."""

    def __init__(self) -> None:
        self._begun_s = time.process_time()
        self.spent_s: list[tuple[int, float]] = []

    def on_step(self, result: StepResult) -> None:
        now_s = time.process_time()
        self.spent_s.append((result.step, now_s - self._begun_s))
        self._begun_s = now_s


@dataclass(frozen=True)
class Cost:
    """Shares of a step's CPU time."""

    comparison: float
    """Of one comparison: median of the ratios of a step with it to the one before, less one."""
    error: float
    """Standard error of that, from the spread of the ratios."""

    @property
    def of_run(self) -> float:
        """With the interval that runs have by default."""
        return self.comparison / HealthConfig().digest_every


def cost(parallel: dict[str, int], pairs: int) -> Cost:
    """How much more CPU time a step takes in which copies are compared."""
    config = configuration(parallel, EVERY * pairs + WARM_UP)
    health = replace(config.health, digest_every=EVERY)
    config = replace(config, health=health)
    times = [StepTimes() for _ in range(config.parallel.world_size)]

    def member(groups: Groups) -> None:
        rank = groups.every_rank.rank
        session = Session(config, rank, data_factory=synthetic(config, rank))
        session.join(groups)
        session.load("init")
        session.run(times[rank])
        session.leave()

    over_gloo(config.parallel.grid, member)
    steps = times[0].spent_s[WARM_UP:]
    ratios = [
        after_s / before_s
        for (_, before_s), (step, after_s) in itertools.pairwise(steps)
        if (step + 1) % EVERY == 0
    ]
    error = 1.253 * statistics.stdev(ratios) / len(ratios) ** 0.5
    return Cost(statistics.median(ratios) - 1, error)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; the exit code is the number of limits that do not hold."""
    made = parser(__doc__)
    made.add_argument("--pairs", type=int, default=40, help="steps with and without, each")
    options = made.parse_args(argv)
    torch.set_num_threads(1)
    found = {layout: cost(of, options.pairs) for layout, of in LAYOUTS.items()}
    for layout, one in found.items():
        print(
            f"{layout:8} a comparison takes {one.comparison:+.2%} of a step, standard error "
            f"{one.error:.2%}; of a run {one.of_run:+.3%}"
        )
    failures = [
        f"{layout}: {one.of_run:.2%} of a run"
        for layout, one in found.items()
        if one.of_run > LIMIT_SHARE
    ]
    shares = {layout: {**asdict(one), "of_run": one.of_run} for layout, one in found.items()}
    return finish(options.out, failures, share_of_step=shares)


if __name__ == "__main__":
    sys.exit(main())
