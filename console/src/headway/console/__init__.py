"""The front end of Headway: launch, steer and watch runs, from a notebook or a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.console.ablation.measure import ablate
    from headway.console.ablation.shown import Ablation
    from headway.console.cluster import Cluster
    from headway.console.compare import compare
    from headway.console.reports.training_data import TrainingData
    from headway.console.run import Run

__all__ = ["Ablation", "Cluster", "Run", "TrainingData", "ablate", "compare"]

__getattr__, __dir__ = lazy(
    __name__,
    cluster="Cluster",
    compare="compare",
    run="Run",
    **{
        "ablation.measure": "ablate",
        "ablation.shown": "Ablation",
        "reports.training_data": "TrainingData",
    },
)
