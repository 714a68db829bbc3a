"""``slurm.toml``: how the nodes of a run are taken from Slurm.

shared = "/lustre/me/headway"              # a folder that all machines see, for checkpoints
python = "/opt/headway/bin/python"         # on each machine, Headway installed
options = ["--partition=train", "--gpus-per-node=8", "--time=24:00:00"]
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from headway.common.errors import ConfigError
from headway.common.plan.topology import Chain
from headway.launch.engines.remote import hooks
from headway.launch.engines.remote.config_file import check_absolute, check_python
from headway.launch.join.scratch import DEFAULT

OURS = (
    "--nodes", "--job-name", "--signal", "--output", "--parsable", "--wrap", "--ntasks",
    "--ntasks-per-node", "--array", "--requeue", "--test-only", "--wait",
)  # fmt: skip
"""Options of sbatch that the engine sets itself, or that would change what a job is."""
OUR_LETTERS = "NJonaW"
"""The single letters of sbatch for options in ``OURS``."""
_GPU_VARIABLES = (
    "SBATCH_GPUS", "SBATCH_GPUS_PER_NODE", "SBATCH_GPUS_PER_TASK", "SBATCH_GRES",
)  # fmt: skip
_GPU_OPTION = re.compile(
    r"--gpus(-per-(node|task|socket))?=.|-G.|--gres=(.*,)?gpu\b"
    r"|SBATCH_GPUS(_PER_NODE|_PER_TASK)?=.|SBATCH_GRES=(.*,)?gpu\b"
)
MOST_NOTICE_S = 65535
"""The longest notice that ``sbatch --signal`` takes, in seconds."""


@dataclass(frozen=True)
class SlurmConfig:
    """The file ``slurm.toml``."""

    shared: str
    """A folder that every machine sees at this path, with room for the checkpoints."""
    python: str = "python3"
    """Python of the installation, on each machine."""
    options: tuple[str, ...] = ()
    """Options of sbatch, for the partition, account, time limit and GPUs.

    ``SBATCH_*`` variables work, too.
    """
    scratch: str = DEFAULT
    """Folder on each machine's own disk, for logs and keys; ``{uid}`` is the user's number there.
    It must belong to that user or to root."""
    notice_s: int = 120
    """How long before the time limit the run stops with a checkpoint. Slurm's signal may come up to
    a minute early."""
    fence: tuple[str, ...] = ()
    """What cuts a machine off that cannot be reached, with ``{name}`` for its name; its exit code
    0 confirms it."""
    drain: tuple[str, ...] = ()
    """What takes a machine out of service that the run has given up, such as ``["scontrol",
    "update", "NodeName={name}", "State=DRAIN", "Reason={reason}"]``, for which Slurm wants an
    operator. It is also run for machines that were evicted or drained."""
    drain_prefix: str = ""
    """Put before the reason, as ``[node_problem]`` for what replaces drained machines."""
    topology: tuple[str, ...] = ()
    """Command that prints the switches above each machine in the form of ``topology.toml``, run
    when a run starts."""

    def __post_init__(self) -> None:
        check_absolute(shared=self.shared, scratch=self.scratch)
        check_python(self.python)
        for option in self.options:
            if not _may_be_given(option):
                raise ConfigError(
                    f"options: {option!r} cannot be used",
                    remedy="write each option of sbatch as one word, such as --partition=train, "
                    f"and none of {', '.join(OURS)}, -{', -'.join(OUR_LETTERS)}",
                )
        if not 1 <= self.notice_s <= MOST_NOTICE_S:
            raise ConfigError(
                f"notice_s={self.notice_s} is out of range",
                remedy=f"write 30 to {MOST_NOTICE_S}, less than the time limit",
            )
        for key in ("fence", "drain"):
            hooks.check(key, getattr(self, key))

    @property
    def asks_for_gpus(self) -> bool:
        """Whether its options, or sbatch's variables, ask Slurm for GPUs."""
        words = [*self.options, *(f"{key}={os.environ.get(key, '')}" for key in _GPU_VARIABLES)]
        return any(_GPU_OPTION.match(word) for word in words)


def _may_be_given(option: str) -> bool:
    """sbatch takes any beginning of a long option for it."""
    name = option.split("=")[0]
    if name.startswith("--"):
        return len(name) > 2 and " " not in name and not any(one.startswith(name) for one in OURS)
    return len(name) > 1 and name[0] == "-" and " " not in option and name[1] not in OUR_LETTERS


@dataclass(frozen=True)
class SlurmRun(SlurmConfig):
    """The configuration, with what Slurm has given to one run."""

    job: str = ""
    """Number of the allocation."""
    hosts: tuple[str, ...] = ()
    """Its machines; node K begins on the K-th."""
    chains: dict[str, Chain] = field(default_factory=dict)
    """Those of ``topology.toml``, by machine of the cluster."""
    switches: tuple[Chain, ...] = ()
    """Those above each machine, the top one first; empty where none are known."""
    network: str = ""
    """The smallest one in which Slurm reaches all of them, such as ``10.0.1.0/24``."""
