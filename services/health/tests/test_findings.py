"""Findings of a whole run: whose fault it is, how often it came, and what follows from what."""

from __future__ import annotations

from itertools import count

from headway.common.wire.messages.health import Finding, Gpu, Machine, NicPort, Verdict
from headway.health.config import HealthConfig
from headway.health.rule_files import shipped
from headway.health.rulebook import RuleBook
from headway.health.sources.changes import changed
from headway.health.state import MonitorState
from headway.testkit.beats import RUN_ID, SimulatedNode, lockstep
from msgspec import structs

GPU_A, GPU_B = "0000:45:00.0", "0000:5e:00.0"
_OFFSETS = count(1)


class Cluster:
    """A monitor and the agents of two nodes; time passes with each report."""

    def __init__(self, rules: RuleBook | None = None) -> None:
        self.state = MonitorState(HealthConfig(), RUN_ID, rules=rules)
        self._nodes = [SimulatedNode(node, lockstep(1, 4000, lambda _: 0.4)) for node in (0, 1)]
        self._now_s = 0.0

    def report(self, *findings: Finding, node: int = 0, after_s: float = 0.5) -> list[Verdict]:
        verdicts: list[Verdict] = []
        until_s = self._now_s + after_s
        while self._now_s < until_s:
            self._now_s += 0.5
            is_last = self._now_s >= until_s
            for one in self._nodes:
                sent = findings if is_last and one.node == node else ()
                beat = one.beat(self._now_s, sent)
                verdicts += self.state.on_beat(beat, self._now_s)
            verdicts += self.state.tick(self._now_s)
        return verdicts

    def consists_of(self, machine: Machine) -> None:
        beat = structs.replace(self._nodes[0].beat(self._now_s), machine=machine)
        self.state.on_beat(beat, self._now_s)


def xid(number: int, gpu: str) -> Finding:
    rule = "gpu_lost" if number == 79 else f"xid_{number}"
    line = f"NVRM: Xid (PCI:{gpu[:-2]}): {number}, pid=1"
    return Finding(
        rule=rule, source="kernel", subject="gpu", name=gpu, file="/dev/kmsg", inode=5,
        offset=next(_OFFSETS), line=line,
    )  # fmt: skip


def remedies(verdicts: list[Verdict]) -> list[str]:
    return [one.remedy for one in verdicts if one.is_open]


def test_the_gpu_is_suspected_only_when_it_alone_repeats_an_xid() -> None:
    cluster = Cluster()
    (first,) = remedies(cluster.report(xid(31, GPU_A)))
    assert "fault of the program" in first and "test the GPU" not in first
    assert remedies(cluster.report(xid(31, GPU_A), after_s=3600)) != [], "a new episode"
    told = cluster.report(xid(31, GPU_A), after_s=3600)
    assert "no other does" in remedies(told)[-1] and "test the GPU" in remedies(told)[-1]
    rows = {row.name: row.value for row in told[-1].evidence}
    assert rows["repeated"] == "3 within 86400 s, and only here"


def test_an_xid_on_many_gpus_accuses_none() -> None:
    cluster = Cluster()
    seen: list[str] = []
    for _ in range(4):
        seen += remedies(cluster.report(xid(13, GPU_A), after_s=100))
        seen += remedies(cluster.report(xid(13, GPU_A), node=1, after_s=100))
    assert len(seen) == 8 and not any("no other does" in one for one in seen)


def test_clean_up_after_another_error_is_no_verdict() -> None:
    cluster = Cluster()
    assert len(cluster.report(xid(79, GPU_A))) == 1
    assert cluster.report(*[xid(45, GPU_A)] * 1) == []
    (known,) = cluster.report(*[xid(45, GPU_B) for _ in range(9)])
    assert [row.name for row in known.evidence].count("victim") == 1, "ended with its program"
    assert cluster.report(*[xid(45, GPU_A) for _ in range(9)]) == [], "of the lost GPU"
    cluster.report(after_s=120.0)
    assert cluster.report(*[xid(45, GPU_B) for _ in range(2)]) == []
    (alone,) = cluster.report(xid(45, GPU_B))
    assert "restart the fabric manager" in alone.remedy and alone.confidence < 0.5


def test_a_lost_gpu_is_one_verdict_with_and_without_an_xid() -> None:
    cluster = Cluster()
    gone = changed("gpu_lost", "gpu", "gpu", "GPU is no longer listed", name=GPU_A)
    told = cluster.report(xid(79, GPU_A), gone)
    told += cluster.report(structs.replace(xid(79, GPU_A), line="fallen off the bus"))
    assert [one.kind for one in told] == ["gpu_fault"]
    assert told[0].remedy.startswith(f"GPU {GPU_A}: ") and told[0].action == "observe"


def test_corrected_errors_are_a_verdict_only_in_numbers() -> None:
    cluster = Cluster()
    found = Finding(rule="machine_check", source="kernel", file="/dev/kmsg", line="EDAC MC0: 1 CE")
    for turn in range(9):
        assert cluster.report(structs.replace(found, offset=turn + 1), after_s=30) == []
    assert len(cluster.report(structs.replace(found, offset=10, count=1), after_s=30)) == 1
    many = structs.replace(found, inode=2, count=500)
    assert len(Cluster().report(many)) == 1, "an agent sends many as one"


def test_a_port_that_flaps_is_named_and_its_victims_are_not() -> None:
    cluster = Cluster()
    nic = NicPort(name="mlx5_3", port=1, link_layer="InfiniBand", rate="400 Gb/sec", firmware="28")
    cluster.consists_of(Machine(host_type="G8 Node", nics=(nic,)))
    flap = changed("nic_flap", "nic", "nic", "mlx5_3 port 1 lost its link", name="mlx5_3/1")
    told = cluster.report(flap)
    assert [("flaps" in one) for one in remedies(told)] == [False]
    again = changed("nic_flap", "nic", "nic", "mlx5_3 port 1 lost its link", name="mlx5_3/1")
    (revised,) = cluster.report(again, after_s=120)[-1:]
    assert "drain the node" in revised.remedy and revised.is_open and revised.node == 0
    rows = {row.name: row.value for row in revised.evidence}
    assert rows["hardware"] == "mlx5_3 port 1 InfiniBand 400 Gb/sec, firmware 28 G8 Node"
    assert rows["finding"] == "mlx5_3 port 1 lost its link" and "line" not in rows


def test_a_gpu_is_named_by_its_uuid_too() -> None:
    cluster = Cluster()
    gpu = Gpu(index=3, pci=GPU_A, uuid="GPU-1c2e", name="NVIDIA H100 80GB HBM3")
    cluster.consists_of(Machine(gpus=(gpu,), driver="570.158", kernel="6.8.0"))
    (told,) = cluster.report(xid(48, GPU_A))
    rows = {row.name: row.value for row in told.evidence}
    assert rows["hardware"] == "GPU 3 NVIDIA H100 80GB HBM3 GPU-1c2e driver 570.158"
    assert rows["release"] == "6.8.0"
    assert (rows["program"], rows["at"].rsplit(":", 2)[0]) == ("kernel", "/dev/kmsg")


def test_files_of_two_nodes_with_one_name_and_number_are_two_files() -> None:
    """Nodes that were made from one image: the second one's log is shorter."""
    cluster = Cluster()
    earlier, later = xid(79, GPU_A), xid(79, GPU_A)
    assert [one.node for one in cluster.report(later, node=0)] == [0]
    assert [one.node for one in cluster.report(earlier, node=1)] == [1]


def test_a_restarted_monitor_knows_the_counters_it_has_reported() -> None:
    first, second = Cluster(), Cluster()
    flap = changed("nic_flap", "nic", "nic", "lost its link", name="mlx5_3/1")
    second.state.restore(first.report(flap))
    assert second.report(flap) == []
    later = changed("nic_flap", "nic", "nic", "lost its link", name="mlx5_0/1")
    assert len(second.report(later)) == 1


def test_own_rules_reach_the_monitor() -> None:
    own = structs.replace(
        shipped().by_name["nan_loss"], name="tokens_lost", remedy="see the loader"
    )
    found = Finding(rule="tokens_lost", source="rank", file="a.log", offset=4, line="x", rank=2)
    (told,) = Cluster(RuleBook([own])).report(found)
    assert (told.remedy, told.rank) == ("see the loader", 2)
    assert Cluster().report(found) == []


def test_a_state_that_lasts_is_one_episode_until_it_ends() -> None:
    cluster, seen = Cluster(), []
    for _ in range(12):
        line = "mlx5_3 port 1 is down"
        down = changed("nic_down", "nic", "nic", line, name="mlx5_3/1")
        seen += cluster.report(down, after_s=HealthConfig().log_quiet_s / 4)
    assert [one.is_open for one in seen] == [True]
    ended = cluster.report(after_s=HealthConfig().log_quiet_s + 2)
    assert [(one.id, one.is_open) for one in ended] == [(seen[0].id, False)]
