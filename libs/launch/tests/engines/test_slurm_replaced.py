"""A machine that the run has given up leaves Slurm's allocation, and a further job brings another.

The answers were recorded from Slurm 22.05; tests/e2e/test_slurm_replaced.py has a real one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError
from headway.common.wire.addresses import Network
from headway.launch.engines.choose import facts_of, places_of
from headway.launch.engines.remote.reach import OnOrder, UnreachableError
from headway.launch.engines.slurm.config import SlurmRun
from headway.launch.engines.slurm.machines import Place, SlurmMachines
from headway.launch.join.bundle import Bundle

RUN = "0123ab02"
HOSTS = ("node-0", "node-1", "node-2")
ALLOCATION = f"7|headway-{RUN}|RUNNING|node-[0-2]|None"
FURTHER = f"8|headway-{RUN}-7-n1|RUNNING|node-9|None"
SCONTROL = """
case "$*" in
"show hostnames node-9") echo node-9;;
"show hostnames"*) echo node-0; echo node-1; echo node-2;;
"show job"*) echo "JobId=7 JobName=a BatchHost=node-0 NumNodes=3";;
update*) echo "at $PWD" >> {folder}/asked; touch slurm_job_7_resize.sh; {update};;
esac"""
NO_CONTROLLER = "slurm_update error: Unable to contact slurm controller (connect failure)"
REFUSED = "Job update not available right now, the DB index is being set, try again in a bit"

Make = Callable[..., SlurmMachines]


@pytest.fixture
def make(slurm: Callable[..., None], tmp_path: Path) -> Make:
    """A run on three machines, whose driver has the files of ``tmp_path``."""

    def machines(jobs: str = ALLOCATION, update: str = "true", **config: object) -> SlurmMachines:
        steps = "7.0|n0|node-0\n7.1|n1|node-1\n7.2|n2|node-2\n8.0|n1|node-9"
        text = f"case \"$*\" in *--steps*) echo '{steps}';; *) echo '{jobs}';; esac"
        slurm("squeue", text=text)
        slurm("scontrol", text=SCONTROL.format(folder=tmp_path, update=update))
        drain = ("sh", "-c", f'echo "drained $0: $1" >> {tmp_path}/asked', "{name}", "{reason}")
        given = {"drain": drain, "job": "7", "hosts": HOSTS, **config}
        found = SlurmRun("/x", sys.executable, **given)  # type: ignore[arg-type]
        return SlurmMachines(RUN, str(tmp_path / "control"), found)

    return machines


def _asked(tmp_path: Path, *programs: str) -> list[str]:
    lines = (tmp_path / "asked").read_text().splitlines()
    return [line for line in lines if line.startswith(programs)]


def test_a_machine_is_drained_and_leaves_the_allocation_and_the_next_start_queues_a_job(
    make: Make, tmp_path: Path
) -> None:
    machines = make(drain_prefix="[node_problem]")
    assert machines.replaces == "condemned"
    assert machines.replace(1, "gpu_fault: Xid 79") == ""
    done = _asked(tmp_path, "drained", "scontrol update", "at")
    assert done[:2] == [
        "drained node-1: [node_problem] gpu_fault: Xid 79",
        "scontrol update JobId=7 NodeList=node-0,node-2",
    ]
    assert done[2] != f"at {Path.cwd()}" and not Path("slurm_job_7_resize.sh").exists()
    for one in (machines, make()):  # another driver knows it as well
        with pytest.raises(OnOrder, match="job 8 is queued"):
            one.start(1, "ticket", kill_hung=False)
    assert "--exclude" not in _asked(tmp_path, "sbatch")[-1], "Slurm gives it to nobody"
    with pytest.raises(UnreachableError, match="no machine for node 1"):
        machines.call(1, "end", "", limit_s=5.0)


def test_a_machine_that_a_verdict_has_drained_is_not_drained_twice(
    make: Make, tmp_path: Path
) -> None:
    machines = make()
    machines.report_bad(1, "Xid 79", limit_s=5.0)
    machines.replace(1, "gpu_fault: Xid 79")
    assert _asked(tmp_path, "drained") == ["drained node-1: Xid 79"]


def test_the_machine_of_the_batch_script_stays_allocated_and_is_not_used(
    make: Make, tmp_path: Path
) -> None:
    machines = make()
    note = machines.replace(0, "evicted")
    assert note == "node-0 stays allocated: it runs the batch script of job 7"
    assert _asked(tmp_path, "scontrol update") == []
    assert _asked(tmp_path, "drained") == ["drained node-0: evicted"]
    with pytest.raises(OnOrder, match="node 0 is waiting for a machine"):
        machines.start(0, "ticket", kill_hung=False)


def test_what_slurm_refuses_is_reported_and_the_machine_is_not_used(make: Make) -> None:
    machines = make(update=f"echo '{REFUSED}' >&2; exit 1")
    assert machines.replace(1, "evicted") == f"node-1 stays allocated: Slurm refuses: {REFUSED}"
    with pytest.raises(OnOrder):
        machines.start(1, "ticket", kill_hung=False)


def test_slurm_may_need_a_while_between_two_changes_of_a_job(make: Make, tmp_path: Path) -> None:
    again = f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; echo '{REFUSED}' >&2; exit 1; }}"
    assert make(update=again).replace(1, "evicted") == ""
    assert len(_asked(tmp_path, "scontrol update")) == 2


def test_while_the_controller_is_away_nothing_is_decided(make: Make, tmp_path: Path) -> None:
    machines = make(update=f"echo '{NO_CONTROLLER}' >&2; exit 1")
    with pytest.raises(UnreachableError, match="Slurm does not respond"):
        machines.replace(1, "evicted")
    assert make().replace(1, "evicted") == ""
    assert _asked(tmp_path, "scontrol update")[-1].endswith("NodeList=node-0,node-2")


@pytest.mark.parametrize("why", ["no command", "no operator"])
def test_a_machine_that_is_not_drained_is_given_to_no_further_job(
    make: Make, tmp_path: Path, why: str
) -> None:
    drain = () if why == "no command" else ("sh", "-c", "echo no operator >&2; exit 1", "{name}")
    options = ("--account=a", "--exclude=node-7")
    machines = make(drain=drain, options=options)
    note = machines.replace(1, "evicted")
    assert note == ("node-1 is not drained: node-1: no operator" if drain else "")
    with pytest.raises(OnOrder):
        machines.start(1, "ticket", kill_hung=False)
    [queued] = _asked(tmp_path, "sbatch")
    assert queued.index("--exclude=node-7 ") < queued.index("--exclude=node-7,node-1 ")


def test_the_machine_of_a_further_job_leaves_with_its_job(make: Make, tmp_path: Path) -> None:
    machines = make(f"{ALLOCATION}\n{FURTHER}")
    assert machines.replace(1, "evicted") == ""
    assert _asked(tmp_path, "drained", "scontrol update", "scancel") == [
        "drained node-9: evicted",
        "scancel 8",
    ]


def test_where_the_nodes_are_follows_the_replacement(make: Make, tmp_path: Path) -> None:
    machines = make(f"{ALLOCATION}\n{FURTHER}")
    facts = facts_of(machines._config)
    bundle = Bundle(RUN, "a", 3, "", Network(), facts, str(tmp_path), "ab")
    on_first = [Place("7", f"node-{node}", f"7.{node}") for node in range(3)]
    assert places_of(bundle) == [on_first[0], Place("8", "node-9", "8.0"), on_first[2]]


def test_a_machine_that_has_left_already_needs_nothing(make: Make, tmp_path: Path) -> None:
    machines = make("9|another|RUNNING|node-1|None")
    assert machines.replace(1, "evicted") == ""
    assert _asked(tmp_path, "drained", "scontrol update", "scancel") == []


def test_a_folder_that_cannot_be_written_is_an_error(make: Make, tmp_path: Path) -> None:
    (tmp_path / "machines").touch()
    with pytest.raises((HeadwayError, OSError)):
        make().replace(1, "evicted")
