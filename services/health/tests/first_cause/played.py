"""A monitor and the agents of several nodes, whose ranks end and whose machines fail on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from headway.common.wire.messages.health import Finding, FindingSource, FindingSubject, Verdict
from headway.health.config import HealthConfig
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, SimulatedNode, lockstep

BEAT_S = 0.5
GPU = "0000:9b:00.0"
CLOSED = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]"
_OFFSETS = count(1)


class Played:
    """Time passes with ``run``; what was reported is in ``verdicts``."""

    def __init__(
        self,
        num_nodes: int = 4,
        ranks_per_node: int = 2,
        domains: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.now_s = 0.0
        config = HealthConfig(domains=dict(domains or {}))
        self.state = MonitorState(config, RUN_ID, clock_s=lambda: 1000.0 + self.now_s)
        lines = lockstep(num_nodes * ranks_per_node, 60, lambda _: 4.0)
        self.nodes = [
            SimulatedNode(node, lines[node * ranks_per_node : (node + 1) * ranks_per_node])
            for node in range(num_nodes)
        ]
        self.ranks_per_node = ranks_per_node
        self.silent: set[int] = set()
        self.verdicts: list[Verdict] = []
        self._found: dict[int, list[Finding]] = {}
        self.run(5.0)

    def node_of(self, rank: int) -> SimulatedNode:
        return self.nodes[rank // self.ranks_per_node]

    def end(self, rank: int, reason: str | None = None) -> None:
        """A rank's process is gone, with these last words or none."""
        node = self.node_of(rank)
        node.states[rank] = "gone"
        if reason is not None:
            node.signals[rank] = {"exit_code": 1, "reason": reason}

    def find(self, node: int, *findings: Finding) -> None:
        """The agent of a node sends these with its next beat."""
        self._found.setdefault(node, []).extend(findings)

    def run(self, for_s: float = BEAT_S) -> list[Verdict]:
        """What is reported meanwhile."""
        before = len(self.verdicts)
        for _ in range(round(for_s / BEAT_S)):
            self.now_s += BEAT_S
            for one in self.nodes:
                beat = one.beat(self.now_s, tuple(self._found.pop(one.node, ())))
                if one.node not in self.silent:
                    self.verdicts += self.state.on_beat(beat, self.now_s)
            self.verdicts += self.state.tick(self.now_s)
        return self.verdicts[before:]

    def newest(self) -> dict[str, Verdict]:
        """The newest revision of each verdict."""
        return {one.id: one for one in self.verdicts}

    def open(self) -> list[Verdict]:
        return [one for one in self.newest().values() if one.is_open]


def rows(verdict: Verdict, name: str) -> list[str]:
    return [row.value for row in verdict.evidence if row.name == name]


def line(
    rule: str,
    text: str,
    *,
    source: FindingSource = "kernel",
    subject: FindingSubject = "node",
    rank: int = -1,
    name: str = "",
    age_s: float = 0.0,
) -> Finding:
    return Finding(
        rule=rule, source=source, subject=subject, rank=rank, name=name, line=text, age_s=age_s,
        file=f"/logs/{rule}{rank}", inode=1, offset=next(_OFFSETS),
    )  # fmt: skip


def closed_by_peer(rank: int, age_s: float = 0.0) -> Finding:
    text = f"[rank{rank}]: {CLOSED}:2807{rank}"
    return line("gloo_peer", text, source="rank", subject="rank", rank=rank, age_s=age_s)


def lost_gpu(pid: str = "'<unknown>'", age_s: float = 0.0) -> Finding:
    text = f"NVRM: Xid (PCI:0000:9b:00): 79, pid={pid}, GPU has fallen off the bus."
    return line("gpu_lost", text, subject="gpu", name=GPU, age_s=age_s)


def oom_kill(pid: int, group: bool = False, age_s: float = 0.0) -> Finding:
    where = "Memory cgroup out of memory" if group else "Out of memory"
    return line("host_oom", f"{where}: Killed process {pid} (python3)", age_s=age_s)


def flap(node: int, times: int = 1) -> Finding:
    text = f"mlx5_0 port 1 of node {node} lost its link"
    found = line("nic_flap", text, source="nic", subject="nic", name="mlx5_0/1")
    return Finding(
        **{
            **{name: getattr(found, name) for name in found.__struct_fields__},
            "count": times,
        }
    )
