"""One process of a measured side: ``python -m benchmarks.train.worker`` with a job on its stdin.

Not to be started by hand; ``sides.Team`` does it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.train.shapes import Shape
from benchmarks.train.turns import Finished, Turns


@dataclass(frozen=True)
class Job:
    """What one process has to do. ``run`` is ``module:function``, called with the job and turns."""

    run: str
    rank: int
    world: int
    threads: int
    folder: str
    """Shared by the side's processes: rendezvous files, and the weights to begin with."""
    shape: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> Shape:
        """The model to train."""
        return Shape(**self.shape)

    @property
    def weights(self) -> Path:
        """The file of initial weights."""
        return Path(self.options["weights"])


def connect(job: Job) -> None:
    """torch's default process group over gloo on loopback, met through a file."""
    import torch.distributed

    os.environ.update(RANK=str(job.rank), WORLD_SIZE=str(job.world), LOCAL_RANK=str(job.rank))
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{job.folder}/meeting",
        rank=job.rank,
        world_size=job.world,
    )


def main() -> int:
    """Run the job; the last line reports an error, if there was one."""
    turns = Turns()
    job = Job(**json.loads(sys.stdin.readline()))
    try:
        import torch

        torch.set_num_threads(job.threads)
        module, function = job.run.split(":")
        run = getattr(importlib.import_module(module), function)
        run(job, turns)
    except Finished:
        pass
    except Exception as error:
        traceback.print_exc()
        text = " ".join(str(error).split())[:400]
        turns.send({"error": f"{type(error).__name__}: {text}"})
    sys.stderr.flush()
    os._exit(0)  # process groups of several libraries would wait for each other


if __name__ == "__main__":
    main()
