"""Refuses to ablate on this machine what is laid out for several."""

from __future__ import annotations

import os

from headway.common.errors import InputError
from headway.trainer.config import RunConfig

MOST_PER_CPU = 16
"""Ranks: eight stand-ins fit on two CPUs with room to spare."""


def check_fits_here(config: RunConfig, *, num_cpus: int | None = None) -> None:
    """All ranks of a trial are processes of this machine, whatever ``launch.nodes`` says.

    Args:
        num_cpus: those that this process may use; counted if not given.

    Raises:
        InputError: the configuration names the network of a cluster's machines, or has far more
            ranks than this machine has CPUs.
    """
    launch, ranks = config.launch, config.parallel.world_size
    for key in ("interface", "fabric"):
        if launch.nodes > 1 and (value := getattr(launch, key)):
            raise InputError(
                f"launch.nodes={launch.nodes} with launch.{key}={value!r} is for machines of a "
                f"cluster, and an ablation starts all {ranks} ranks on this machine",
                remedy="measure the layout of one machine: run it there with --set launch.nodes=1 "
                "and smaller degrees in [parallel]",
            )
    most = MOST_PER_CPU * (num_cpus or len(os.sched_getaffinity(0)))
    if config.train.device == "cpu" and ranks > most:
        raise InputError(
            f"an ablation starts all {ranks} ranks on this machine, whose CPUs can share "
            f"{most} at most",
            remedy="reduce parallel.tp, pp or dp with --set, or use a machine with GPUs",
        )
