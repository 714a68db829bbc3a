"""A real Slurm on the nodes of a bed: the controller on one, a slurmd on each other one.

Files lie in a folder that all nodes see; nothing of the host's own Slurm or munge is touched.
"""

from __future__ import annotations

import secrets
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.polling import wait_until
from headway.testkit.bed.node import Node

START_LIMIT_S = 40.0
PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
}
"""Program -> its package in Debian."""
_CONFIG = """\
ClusterName=bed
SlurmctldHost={head}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={disk}/slurmctld
SlurmdSpoolDir={disk}/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={disk}/slurmctld.log
SlurmdLogFile={disk}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0
MpiDefault=none
ReturnToService=2
SlurmdTimeout=15
SlurmctldTimeout=30
MessageTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge=600
TreeWidth=65533
SlurmdParameters=config_overrides
TopologyPlugin=topology/tree
NodeName={names} CPUs=8 RealMemory=4000 State=UNKNOWN
PartitionName=train Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""
# "autodetect" looks for a mount that a node of the bed does not have
_CGROUP = "CgroupPlugin=cgroup/v1\n"


class Slurm:
    """Starts with its object and ends with its nodes.

    Args:
        folder: for its files, seen by all nodes; made here.
        head: node of the controller, from which jobs are sent.
        nodes: nodes that run jobs.
        disk: leads to each node's own disk on every node.
    """

    def __init__(self, folder: Path, head: Node, nodes: Sequence[Node], disk: Path) -> None:
        self.folder, self.head, self._nodes = folder, head, nodes
        folder.mkdir(mode=0o700)
        for node in (head, *nodes):  # jobs of a former controller would be started again
            for name in ("slurmctld", "slurmd"):
                shutil.rmtree(node.root / name, ignore_errors=True)
        names = ",".join(node.name for node in nodes)
        (folder / "slurm.conf").write_text(_CONFIG.format(head=head.name, names=names, disk=disk))
        (folder / "cgroup.conf").write_text(_CGROUP)
        (folder / "topology.conf").write_text(_topology([node.name for node in nodes]))
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o600)
        for node in (head, *nodes):
            self.start(node)
        if not wait_until(self._runs_steps, START_LIMIT_S, every_s=0.2):
            found = head.run(["sinfo", "-Nl"], check=False)
            raise HeadwayError(f"Slurm is not ready: {found.stdout}{found.stderr}")

    @staticmethod
    def missing() -> str:
        """What keeps it from running here, "" if nothing does."""
        absent = [name for name in PROGRAMS if not shutil.which(name, path=_PATH)]
        if not absent:
            return ""
        packages = " ".join(sorted({PROGRAMS[name] for name in absent}))
        return f"{', '.join(absent)} not found (apt-get install {packages})"

    def start(self, node: Node) -> None:
        """Start what runs on the node, as its boot would."""
        daemon = "slurmctld" if node is self.head else "slurmd"
        node.run(["sh", "-euc", _BOOT.format(folder=self.folder, daemon=daemon)])

    def _runs_steps(self) -> bool:
        """Whether a step runs on all nodes: Slurm calls nodes idle before they accept work."""
        count = str(len(self._nodes))
        words = ["srun", "--quiet", "--immediate=5", "-N", count, "true"]
        return self.head.run(words, check=False).returncode == 0

    def queue(self) -> list[str]:
        """Name and machines of each job that waits or runs."""
        return self.head.run(["squeue", "--noheader", "--format=%j %N"]).stdout.splitlines()

    def machine_of(self, node: int) -> Node:
        """The machine whose step keeps a node of the run: not always the one of that number."""
        words = ["squeue", "--steps", "--noheader", "--format=%i %j %N"]
        rows = [line.split() for line in self.head.run(words).stdout.splitlines()]
        # steps that have died with their machine are shown, too
        _, host = max((float(step), host) for step, name, host in rows if name == f"n{node}")
        return next(one for one in self._nodes if one.name == host)

    def wait_for_empty_queue(self, limit_s: float) -> None:
        """Raises HeadwayError if jobs are left."""
        if not wait_until(lambda: not self.queue(), limit_s, every_s=0.1):
            raise HeadwayError(f"jobs are left: {self.queue()}")

    # ---- the controller -----------------------------------------------------------------------
    def stop_controller(self) -> None:
        """End slurmctld, as for maintenance; returns once it has ended."""
        self.head.run(["sh", "-euc", "pid=$(cat /run/slurmctld.pid); kill $pid\n" + _UNTIL_GONE])

    def start_controller(self) -> None:
        """Start it again with the state that it saved."""
        self.head.run(["slurmctld"])


_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_UNTIL_GONE = "while kill -0 $pid 2>/dev/null; do sleep 0.05; done"
_BOOT = textwrap.dedent("""\
    PATH=$PATH:/usr/sbin:/sbin
    mkdir -p /etc/slurm /run/munge
    chmod 755 /run/munge
    cp {folder}/*.conf /etc/slurm/
    cp {folder}/munge.key /run/munge/key
    chmod 600 /run/munge/key
    munged --force --key-file=/run/munge/key --socket=/run/munge/munge.socket.2 \\
        --num-threads=2 --seed-file=/run/munge/seed --pid-file=/run/munge/pid \\
        --log-file=/run/munge/log
    {daemon}
""")


def _topology(names: Sequence[str]) -> str:
    half = (len(names) + 1) // 2
    racks = [part for part in (names[:half], names[half:]) if part]
    lines = [f"SwitchName=rack{n} Nodes={','.join(rack)}" for n, rack in enumerate(racks)]
    spine = f"SwitchName=spine Switches={','.join(f'rack{n}' for n in range(len(racks)))}"
    return "\n".join([*lines, spine]) + "\n"
