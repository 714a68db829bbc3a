"""The allocation of a run, with answers recorded from Slurm 22.05; see test_slurm.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from headway.common.errors import ConfigError, HeadwayError
from headway.common.node.run_dir import RunDir
from headway.common.plan.grid import Grid
from headway.common.plan.nearest import place
from headway.common.plan.topology import Topology
from headway.common.plan.traffic import Ring, Traffic
from headway.common.wire.addresses import Network
from headway.launch.engines.choose import facts_of, topology_of
from headway.launch.engines.slurm import commands
from headway.launch.engines.slurm.allocation import allocate, job_name, network_of
from headway.launch.engines.slurm.config import SlurmConfig, SlurmRun
from headway.launch.join.bundle import Bundle

RUN = "0123ab02"
NO_CONTROLLER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


def _asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "asked").read_text().splitlines()


# ---- the topology -------------------------------------------------------------------------------
TREE = """\
SwitchName=rack0 Level=0 LinkSpeed=1 Nodes=node-0,node-3
SwitchName=rack1 Level=0 LinkSpeed=1 Nodes=node-1,node-4
SwitchName=rack2 Level=0 LinkSpeed=1 Nodes=node-2
SwitchName=row0 Level=1 LinkSpeed=1 Nodes=node-[0,2-3] Switches=rack0,rack2
SwitchName=row1 Level=1 LinkSpeed=1 Nodes=node-[1,4] Switches=rack1
SwitchName=spine Level=2 LinkSpeed=1 Nodes=node-[0-4] Switches=row0,row1"""


def test_the_switches_above_a_machine_come_from_the_top(slurm: Callable[..., None]) -> None:
    expand = "sed 's/node-\\[0,2-3\\]/node-0,node-2,node-3/; s/node-\\[1,4\\]/node-1,node-4/"
    expand += "; s/node-\\[0-4\\]/node-0,node-1,node-2,node-3,node-4/' | tr , '\\n'"
    answer = f"cat <<'END'\n{TREE}\nEND"
    slurm("scontrol", text=f'case $2 in topology) {answer}\n;; *) echo "$3" | {expand};; esac')
    assert commands.switches_of(["node-3", "node-1", "node-9"]) == [
        ("spine", "row0", "rack0"),
        ("spine", "row1", "rack1"),
        (),
    ]


BLOCKS = """\
BlockName=nv0 BlockIndex=0 Nodes=node-0,node-3 BlockSize=2
BlockName=nv1 BlockIndex=1 Nodes=node-1,node-4 BlockSize=2
BlockName=nv2 BlockIndex=2 Nodes=node-2,node-5 BlockSize=2
AggregatedBlock=nv[0-1] BlockIndex=3 Nodes=node-0,node-1,node-3,node-4 BlockSize=4"""
"""From documentation: what the block plugin of Slurm 24.11 and later prints, by its source."""
OLD_BLOCKS = (
    "BlockName=nv0 BlockIndex=0 Nodes=node-0,node-1\nBlockName=nv1 BlockIndex=1 Nodes=node-2"
)
"""The same of Slurm 23.11."""


def _topology(slurm: Callable[..., None], answer: str) -> None:
    """Slurm's machines and topology; names are written out."""
    others = 'node) echo NodeName=node-0 NodeAddr=10.7.1.4;; *) echo "$3" | tr , "\\n";;'
    slurm("scontrol", text=f"case $2 in topology) cat <<'END'\n{answer}\nEND\n;; {others} esac")


def test_a_block_is_a_leaf_and_an_aggregated_block_a_switch_above(
    slurm: Callable[..., None],
) -> None:
    _topology(slurm, BLOCKS)
    hosts = [f"node-{number}" for number in range(5)]
    assert commands.switches_of([*hosts, "node-9"]) == [
        ("nv[0-1]", "nv0"), ("nv[0-1]", "nv1"), ("nv2",), ("nv[0-1]", "nv0"), ("nv[0-1]", "nv1"), ()
    ]  # fmt: skip
    _topology(slurm, OLD_BLOCKS)
    assert commands.switches_of(hosts[:3]) == [("nv0",), ("nv0",), ("nv1",)]


def test_ranks_are_placed_by_blocks(slurm: Callable[..., None]) -> None:
    """The replicas of a stage share a block, which has a spare of its own."""
    blocks = "BlockName=nv0 BlockIndex=0 Nodes=node-0,node-2,node-4 BlockSize=3\n"
    _topology(slurm, blocks + "BlockName=nv1 BlockIndex=1 Nodes=node-1,node-3,node-5 BlockSize=3")
    topology = Topology(tuple(commands.switches_of([f"node-{number}" for number in range(6)])))
    traffic = Traffic(Grid(pp=2, dp=2), (Ring("data parallel", "dp", (100, 100)),))
    assert place(traffic, 1, topology).node_by_rank() == [0, 2, 1, 3]


@pytest.mark.parametrize("answer", ["", "No topology information available"])
def test_without_switches_none_are_above_a_machine(slurm: Callable[..., None], answer: str) -> None:
    slurm("scontrol", answer)
    assert commands.switches_of(("node-2", "node-0")) == [(), ()]


def test_the_network_is_the_smallest_that_has_every_machine(
    slurm: Callable[..., None],
) -> None:
    slurm("scontrol", "NodeName=a Arch=x86_64 NodeAddr=10.7.1.4 X=1\nNodeName=b NodeAddr=10.7.2.9")
    assert network_of(["a", "b"]) == "10.7.0.0/22"
    slurm("scontrol", "NodeName=a NodeAddr=10.7.1.4")
    assert network_of(["a"]) == "10.7.1.0/24"
    slurm("scontrol", "NodeName=a NodeAddr=no-such-host.invalid")
    with pytest.raises(HeadwayError, match=r"cannot resolve no-such-host\.invalid"):
        network_of(["a"])


# ---- an allocation ------------------------------------------------------------------------------
def test_an_allocation_is_waited_for_and_its_reason_said(
    slurm: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.launch.engines.slurm.allocation.POLL_S", 0.05)
    name, said = job_name(RUN), []
    rows = f"8|{name}|PENDING||Resources\n8|{name}|RUNNING|node-[0-1]|None"
    (tmp_path / "rows").write_text(rows)
    slurm("squeue", text=f"head -1 {tmp_path}/rows; tail -1 {tmp_path}/rows > {tmp_path}/r2; "
          f"cp {tmp_path}/r2 {tmp_path}/rows")  # fmt: skip
    addresses = "NodeAddr=10.7.1.4\nNodeAddr=10.7.1.5"
    slurm("scontrol", text=f"case $2 in node) echo '{addresses}';; *) echo node-0 node-1;; esac")
    found = allocate(SlurmConfig("/x", options=("--time=60",)), RUN, "/x/control", 2, said.append)
    assert (found.job, found.hosts) == ("8", ("node-0", "node-1"))
    assert found.network == "10.7.1.0/24"
    assert said == ["waiting for Slurm's job 8 (2 machines): Resources"]
    [submitted] = [line for line in _asked(tmp_path) if line.startswith("sbatch")]
    for word in ("--nodes=2", "--no-kill", "--no-requeue", "--signal=USR1@120", "--time=60"):
        assert word in submitted.split()


PARTITIONS = """\
PartitionName=train AllowGroups=ALL MaxNodes=UNLIMITED MaxTime=UNLIMITED State=UP TotalNodes=5 X=1
PartitionName=small AllowGroups=ALL MaxNodes=UNLIMITED MaxTime=UNLIMITED State=UP TotalNodes=2 X=1
PartitionName=limited AllowGroups=ALL MaxNodes=3 MaxTime=UNLIMITED State=UP TotalNodes=5 X=1"""


@pytest.mark.parametrize(("partitions", "most"), [("small", 2), ("limited", 3), ("small,train", 5)])
def test_more_machines_than_a_partition_has_are_not_waited_for(
    slurm: Callable[..., None], tmp_path: Path, partitions: str, most: int
) -> None:
    waiting = f"8|{job_name(RUN)}|PENDING||PartitionNodeLimit"
    slurm("squeue", text=f"case \"$*\" in *%P) echo {partitions};; *) echo '{waiting}';; esac")
    slurm("scontrol", PARTITIONS)
    with pytest.raises(HeadwayError, match=f"needs 6 machines, .* at most {most}") as error:
        allocate(SlurmConfig("/x"), RUN, "/x/control", 6, print)
    assert "SBATCH_PARTITION" in error.value.remedy
    assert "scancel 8" in _asked(tmp_path)


def test_machines_of_the_partition_that_are_down_are_waited_for(
    slurm: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.launch.engines.slurm.allocation.POLL_S", 0.05)
    job, looked = f"8|{job_name(RUN)}", tmp_path / "looked"
    slurm("squeue", text=f'case "$*" in *%P) echo train; exit;; esac\n'
          f'[ "$(wc -l < {looked})" -lt 2 ] && echo "{job}|PENDING||PartitionNodeLimit" '
          f'|| echo "{job}|RUNNING|node-[0-4]|None"')  # fmt: skip
    hosts = "\n".join(f"node-{number}" for number in range(5))
    partitions = f"partition) echo >> {looked}; cat <<'END'\n{PARTITIONS}\nEND\n;;"
    others = f"node) echo NodeAddr=10.7.1.4;; *) echo '{hosts}';;"
    slurm("scontrol", text=f"case $2 in {partitions} {others} esac")
    looked.touch()
    assert allocate(SlurmConfig("/x"), RUN, "/x/control", 5, print).job == "8"
    assert len(looked.read_text()) == 2


@pytest.mark.parametrize(
    "text",
    [
        "Invalid account or account/partition combination specified",
        "User's group not permitted to use this partition",
        "Invalid user id",  # as DisableRootJobs=YES says it
        "Node count specification invalid",
    ],
)
def test_a_job_that_slurm_refuses_ends_the_start_with_its_reason(
    slurm: Callable[..., None], tmp_path: Path, text: str
) -> None:
    line = f"sbatch: error: Batch job submission failed: {text}"
    slurm("sbatch", text=f'echo "{line}" >&2; exit 1')
    with pytest.raises(HeadwayError) as error:
        allocate(SlurmConfig("/x"), RUN, "/x/control", 2, print)
    assert error.value.message == f"Slurm refuses: {line}" and "SBATCH_" in error.value.remedy
    assert not [asked for asked in _asked(tmp_path) if asked.startswith("scancel")]


def test_an_account_that_a_partition_does_not_know_is_said(
    slurm: Callable[..., None], tmp_path: Path
) -> None:
    """Without accounting Slurm queues such a job."""
    reason = "Job's account not known, so it can't use this partition (acct allows good)"
    slurm("squeue", f"8|{job_name(RUN)}|PENDING||{reason}")

    def interrupt(line: str) -> None:
        assert line == f"waiting for Slurm's job 8 (1 machines): {reason}"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        allocate(SlurmConfig("/x"), RUN, "/x/control", 1, interrupt)
    assert "scancel 8" in _asked(tmp_path)


@pytest.mark.parametrize(
    "answer", ["sleep 600", "echo no number", f"echo '{NO_CONTROLLER}' >&2; exit 1"]
)
def test_a_job_whose_number_is_not_known_is_cancelled_by_its_name(
    slurm: Callable[..., None], tmp_path: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in answer:
        monkeypatch.setattr(commands, "LIMIT_S", 1.0)
    slurm("sbatch", text=answer)
    with pytest.raises(HeadwayError):
        allocate(SlurmConfig("/x"), RUN, "/x/control", 2, print)
    assert f"scancel --name={job_name(RUN)}" in _asked(tmp_path)


def test_a_run_keeps_the_switches_of_its_machines(
    slurm: Callable[..., None], tmp_path: Path
) -> None:
    tree = "SwitchName=a Level=0 Nodes=node-0,node-2\nSwitchName=b Level=0 Nodes=node-1"
    slurm("squeue", f"8|{job_name(RUN)}|RUNNING|node-0,node-1,node-2|None")
    slurm("scontrol", text=f"case $2 in topology) echo '{tree}';; node) echo NodeAddr=10.7.1.4;; "
          '*) echo "$3" | tr , "\\n";; esac')  # fmt: skip
    found = allocate(SlurmConfig("/x"), RUN, "/x/control", 3, print)
    assert found.hosts == ("node-0", "node-1", "node-2")
    assert found.switches == (("a",), ("b",), ("a",))
    assert _topology_of_bundle(found, tmp_path) == Topology((("a",), ("b",), ("a",)))


def _allocated(slurm: Callable[..., None]) -> None:
    """Slurm has two machines, both of which a job gets at once, below one switch."""
    slurm("squeue", f"8|{job_name(RUN)}|RUNNING|node-0,node-1|None")
    tree = "SwitchName=a Level=0 Nodes=node-0,node-1"
    known = "NodeName=node-0 NodeAddr=10.7.1.4\nNodeName=node-1 NodeAddr=10.7.1.5"
    slurm("scontrol", text=f"case $2 in topology) echo '{tree}';; node) echo '{known}';; "
          '*) echo "$3" | tr , "\\n";; esac')  # fmt: skip


def test_a_topology_of_the_user_wins_over_slurms(slurm: Callable[..., None]) -> None:
    """From the file, which may name machines that the job does not get, or from the command."""
    _allocated(slurm)
    chains = {"node-1": ("s", "x"), "node-0": ("s", "y")}
    expected = (("s", "y"), ("s", "x"))
    said: list[str] = []
    given = SlurmRun("/x", chains=chains)
    found = allocate(given, RUN, "/x/control", 2, said.append)
    assert (found.switches, found.chains) == (expected, {})
    command = ("printf", 'node-1 = ["s", "x"]\nnode-0 = ["s", "y"]\n')
    asked = allocate(SlurmConfig("/x", topology=command), RUN, "/x/control", 2, said.append)
    assert asked.switches == expected and said == []
    assert asked.topology == command, "it is asked again when the run is resumed"


def test_a_topology_of_machines_that_slurm_does_not_know_is_refused(
    slurm: Callable[..., None], tmp_path: Path
) -> None:
    """That of the file before anything is queued; what the command prints gives the job back."""
    _allocated(slurm)
    with pytest.raises(ConfigError, match="names node-9, not in Slurm's cluster"):
        allocate(SlurmRun("/x", chains={"node-9": ("s",)}), RUN, "/x/control", 2, print)
    assert not [line for line in _asked(tmp_path) if line.startswith("sbatch")]
    wrong = SlurmConfig("/x", topology=("echo", 'node-9 = ["s"]'))
    with pytest.raises(ConfigError, match="names node-9"):
        allocate(wrong, RUN, "/x/control", 2, print)
    assert "scancel 8" in _asked(tmp_path)


def test_a_machine_that_slurms_switches_lack_is_warned_of(slurm: Callable[..., None]) -> None:
    _allocated(slurm)
    _topology(slurm, "SwitchName=a Level=0 LinkSpeed=1 Nodes=node-0")
    said: list[str] = []
    assert allocate(SlurmConfig("/x"), RUN, "/x/control", 2, said.append).switches == (("a",), ())
    [line] = said
    assert line.startswith("no switches are known above node-1")


def test_machines_whose_switches_slurm_does_not_name_have_no_topology(
    slurm: Callable[..., None], tmp_path: Path
) -> None:
    slurm("squeue", f"8|{job_name(RUN)}|RUNNING|node-0|None")
    slurm("scontrol", text="case $2 in topology) exit 1;; node) echo NodeAddr=10.7.1.4;; "
          '*) echo "$3";; esac')  # fmt: skip
    found = allocate(SlurmConfig("/x"), RUN, "/x/control", 1, print)
    assert found.switches == () and _topology_of_bundle(found, tmp_path) is None
    assert topology_of(RunDir(tmp_path / "of emulated nodes")) is None


def _topology_of_bundle(config: SlurmRun, tmp_path: Path) -> Topology | None:
    nodes = len(config.hosts)
    facts, run = facts_of(config), RunDir(tmp_path)
    Bundle(RUN, "name", nodes, "", Network(), facts, "/x", "secret").save(run.bundle)
    return topology_of(run)


@pytest.mark.usefixtures("slurm")
def test_an_allocation_that_ends_before_it_runs_leaves_nothing_queued(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="job 8 ended before it started"):
        allocate(SlurmConfig("/x"), RUN, "/x/control", 2, print)
    assert "scancel 8" in _asked(tmp_path)
