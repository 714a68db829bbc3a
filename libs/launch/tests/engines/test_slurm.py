"""Slurm's commands with answers recorded from Slurm 22.05; tests/e2e/test_slurm.py has a real one.

Programs of these names on the PATH print what the real ones did and note what they were given.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError, InputError
from headway.common.node.testing import many_open_files
from headway.launch.engines.remote.reach import UnreachableError
from headway.launch.engines.slurm import commands, private, step
from headway.launch.engines.slurm.config import SlurmRun
from headway.launch.engines.slurm.machines import Place, SlurmMachines

NO_CONTROLLER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
RUN = "0123ab01"
ALLOCATION = f"7|headway-{RUN}|RUNNING|node-[0-2]|None"
STEPS = "7.0|n0|node-0\n7.1|n1|node-1\n7.2|n2|node-2\n7.batch|batch|node-0"


def _asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "asked").read_text().splitlines()


def _squeue(jobs: str, steps: str = STEPS) -> str:
    return f"case \"$*\" in *--steps*) echo '{steps}';; *) echo '{jobs}';; esac"


def _machines(config: SlurmRun | None = None, control: Path = Path("/x/control")) -> SlurmMachines:
    hosts = ("node-0", "node-1", "node-2")
    found = config or SlurmRun("/x", sys.executable, job="7", hosts=hosts)
    return SlurmMachines(RUN, str(control), found)


@pytest.fixture
def allocated(slurm: Callable[..., None]) -> Callable[..., None]:
    slurm("squeue", text=_squeue(ALLOCATION))
    slurm("scontrol", "node-0\nnode-1\nnode-2")
    return slurm


# ---- the machines of a run ----------------------------------------------------------------------
def test_a_node_is_a_step_of_the_allocation_and_asked_beside_it(
    allocated: Callable[..., None], tmp_path: Path
) -> None:
    allocated("srun", text="cat")
    assert _machines().call(1, "end", "the ticket", limit_s=20.0) == "the ticket"
    [asked] = [line for line in _asked(tmp_path) if line.startswith("srun")]
    for word in ("--jobid=7", "--nodelist=node-1", "--overlap", "end"):
        assert word in asked.split()
    assert "--no-kill" not in asked, "it would hide that the machine died"
    assert "ticket" not in asked


GIVEN = """
while [ "$1" != {option} ]; do shift; done
stat -c %a "$2" > {folder}/mode; {do}; echo up"""


@pytest.mark.parametrize("verb", private.ANSWERS)
def test_logs_and_records_are_passed_by_a_file_of_the_user_alone(
    allocated: Callable[..., None], tmp_path: Path, verb: str
) -> None:
    text = GIVEN.format(option="--answer", folder=tmp_path, do='echo a line of it > "$2"')
    allocated("srun", text=text)
    (tmp_path / "control").mkdir()
    machines = _machines(control=tmp_path / "control")
    assert machines.call(1, verb, "ticket", limit_s=20.0) == "a line of it\n"
    assert (tmp_path / "mode").read_text() == "600\n"
    assert not list((tmp_path / "control").iterdir())


@pytest.mark.parametrize("kill_hung", [False, True])
def test_the_ticket_of_a_new_node_is_passed_by_a_file_of_the_user_alone(
    allocated: Callable[..., None], tmp_path: Path, kill_hung: bool
) -> None:
    steps = STEPS if kill_hung else "7.batch|batch|node-0"
    allocated("squeue", text=_squeue(ALLOCATION, steps))
    do = f'cat "$2" > {tmp_path}/read; cat > {tmp_path}/stdin'
    allocated("srun", text=GIVEN.format(option="--ticket", folder=tmp_path, do=do))
    (tmp_path / "control").mkdir()
    machines = _machines(control=tmp_path / "control")
    machines.start(1, "the ticket", kill_hung=kill_hung)
    found = [(tmp_path / name).read_text() for name in ("read", "mode", "stdin")]
    assert found == ["the ticket", "600\n", ""]
    assert not list((tmp_path / "control").iterdir())


def test_a_shared_folder_that_takes_no_file_is_named(
    allocated: Callable[..., None], tmp_path: Path
) -> None:
    allocated("squeue", text=_squeue(ALLOCATION, "7.batch|batch|node-0"))
    machines = _machines(control=tmp_path / "absent")
    for act in (
        lambda: machines.call(1, "log", "", limit_s=20.0),
        lambda: machines.start(1, "", kill_hung=False),
    ):
        with pytest.raises(HeadwayError, match=f"cannot write in {tmp_path}/absent: No such file"):
            act()


def test_a_machine_that_dies_meanwhile_has_confirmed_nothing(
    allocated: Callable[..., None],
) -> None:
    allocated("srun", text="cat > /dev/null")
    with pytest.raises(UnreachableError, match="node-1 died during the call"):
        _machines().call(1, "end", "ticket", limit_s=20.0)


def test_a_rebooted_machine_gets_a_step_again(
    allocated: Callable[..., None], tmp_path: Path
) -> None:
    """Slurm still shows the step that died with the machine."""
    allocated(
        "srun", text='case "$*" in *"machine restart"*) exit 4;; *) cat; echo up; sleep 600;; esac'
    )
    machines = _machines(control=tmp_path)
    machines.start(1, "ticket", kill_hung=False)
    assert not [line for line in _asked(tmp_path) if line.startswith("srun")], "it has one"
    machines.start(1, "ticket", kill_hung=True)
    [_, started] = [line for line in _asked(tmp_path) if line.startswith("srun")]
    assert "--no-kill" in started.split() and "init" in started.split()


def test_each_try_to_restart_a_node_may_take_longer_until_one_answers(
    allocated: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm and a start of Python may need more than the first one has."""
    monkeypatch.setattr("headway.launch.engines.slurm.machines.RESTART_LIMIT_S", (0.4, 60.0))
    slow = "sleep 1.2; exit 4"
    allocated(
        "srun", text=f'case "$*" in *"machine restart"*) {slow};; *) cat; echo up; sleep 600;; esac'
    )
    machines, tries = _machines(control=tmp_path), 0
    while True:
        tries += 1
        try:
            machines.start(1, "ticket", kill_hung=True)
            break
        except UnreachableError as error:
            assert "did not respond within" in error.message
            assert tries < 5
    assert tries > 1
    with pytest.raises(UnreachableError, match="within 0 s"):
        machines.start(1, "ticket", kill_hung=True)


def test_a_node_whose_machine_left_the_allocation_gets_a_job_of_its_own(
    slurm: Callable[..., None], tmp_path: Path
) -> None:
    slurm("squeue", text=_squeue(f"7|headway-{RUN}|RUNNING|node-[0,2]|None"))
    slurm("scontrol", "node-0\nnode-2")
    with pytest.raises(UnreachableError, match="node 1 is waiting for a machine: job 8 is queued"):
        _machines().start(1, "ticket", kill_hung=True)
    [submitted] = [line for line in _asked(tmp_path) if line.startswith("sbatch")]
    assert f"--job-name=headway-{RUN}-7-n1" in submitted and "--no-kill" not in submitted
    assert submitted.endswith("/x/control --further")
    queued = f"7|headway-{RUN}|RUNNING|node-[0,2]|None\n8|headway-{RUN}-7-n1|PENDING||Priority"
    slurm("squeue", text=_squeue(queued))
    with pytest.raises(UnreachableError, match="job 8, Priority"):
        _machines().start(1, "ticket", kill_hung=True)
    assert len([line for line in _asked(tmp_path) if line.startswith("sbatch")]) == 1


def test_a_machine_of_its_own_comes_before_the_one_that_it_began_on(
    slurm: Callable[..., None], tmp_path: Path
) -> None:
    slurm("squeue", text=_squeue(f"{ALLOCATION}\n8|headway-{RUN}-7-n1|RUNNING|node-9|None"))
    slurm("scontrol", text='case "$3" in node-9) echo node-9;; *) echo node-0; echo node-1;; esac')
    slurm("srun", text="cat")
    _machines().call(1, "end", "ticket", limit_s=20.0)
    [asked] = [line for line in _asked(tmp_path) if line.startswith("srun")]
    assert "--jobid=8" in asked.split() and "--nodelist=node-9" in asked.split()


NO_POWER = """\
srun: error: Task launch for StepId=2.2 failed on node node-2: Communication connection failure
srun: error: Application launch failed: Communication connection failure"""
NO_CORPUS = """\
error: no corpus at /x (copy it)
srun: error: node-2: task 0: Exited with exit code 2"""
NO_STEP = (
    "srun: error: Unable to create step for job 2: Requested node configuration is not available"
)
REFUSALS = {
    "no power": (NO_POWER, UnreachableError, "cannot be reached"),
    "no controller": (f"srun: error: {NO_CONTROLLER}", UnreachableError, "does not respond"),
    "ours": (NO_CORPUS, HeadwayError, "node-1: no corpus at /x"),
    "slurm's": (NO_STEP, HeadwayError, "Slurm refuses"),
}


@pytest.mark.parametrize(("text", "kind", "expected"), REFUSALS.values(), ids=REFUSALS)
def test_why_a_step_did_not_run_is_told_apart(
    allocated: Callable[..., None], text: str, kind: type[HeadwayError], expected: str
) -> None:
    allocated("srun", text=f"cat <<'END' >&2\n{text}\nEND\nexit 1")
    for act in (
        lambda: _machines().call(1, "end", "", limit_s=20.0),
        lambda: step.start(step.on("7", "node-1", "n1"), name="node-1", limit_s=20.0),
    ):
        with pytest.raises(kind, match=expected) as error:
            act()
        assert isinstance(error.value, UnreachableError) is (kind is UnreachableError)


def test_a_step_goes_on_when_its_srun_is_ended(slurm: Callable[..., None], tmp_path: Path) -> None:
    """The real srun has a shepherd, which ends the step when srun has ended: both must go."""
    shepherd = f"(trap '' TERM; read line; echo ended > {tmp_path}/ended) < {tmp_path}/pipe & "
    os.mkfifo(tmp_path / "pipe")
    slurm("srun", text=f"{shepherd}exec 3> {tmp_path}/pipe; cat; echo up; sleep 600")
    assert step.start(["srun"], name="a", limit_s=20.0) == "up"
    time.sleep(0.2)
    assert not (tmp_path / "ended").exists()


def test_a_driver_with_many_connections_starts_a_step(slurm: Callable[..., None]) -> None:
    slurm("srun", "up")
    with many_open_files():
        assert step.start(["srun"], name="a", limit_s=20.0) == "up"


def test_a_step_that_says_nothing_is_unknown(slurm: Callable[..., None]) -> None:
    slurm("srun", text="sleep 600")
    with pytest.raises(UnreachableError, match="did not answer within 1 s"):
        step.start(["srun"], name="a", limit_s=1.0)


def test_at_the_end_every_job_of_the_run_is_cancelled(
    allocated: Callable[..., None], tmp_path: Path
) -> None:
    allocated("squeue", text=_squeue(f"{ALLOCATION}\n8|headway-{RUN}-7-n1|PENDING||Priority"))
    for name in ("ticket-a", "answer-b", "run.sqlite"):
        (tmp_path / name).touch()  # the first two of commands that were killed
    _machines(control=tmp_path).release()
    assert {"scancel 7", "scancel 8"} <= set(_asked(tmp_path))
    assert not [*tmp_path.glob("ticket-*"), *tmp_path.glob("answer-*")]
    assert (tmp_path / "run.sqlite").exists()


def test_machines_that_no_node_has_left_are_cleaned_by_jobs_that_do_not_wait_long(
    slurm: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.launch.engines.slurm.machines.LEAVE_S", 0.1)
    slurm("srun", "up")
    hosts, options = ("node-0", "node-1", "node-2"), ("--account=a", "--time=24:00:00")
    config = SlurmRun("/x", "/py", options=options, scratch="/s p", job="7", hosts=hosts)
    machines = SlurmMachines(RUN, f"{tmp_path}/shared/a-{RUN}/control", config)
    for node, host in enumerate((*hosts, "node-4")):
        machines._begin(Place("7", host), node % 3, [])
    marks = [Path(line.split("--mark ")[1]) for line in _asked(tmp_path)]
    assert all(mark.exists() for mark in marks)
    marks[0].unlink(), marks[2].unlink()  # as nodes do that leave their machine
    machines.sweep()
    lines = [line for line in _asked(tmp_path) if line.startswith("sbatch")]
    for line, host in zip(lines, ("node-1", "node-4"), strict=True):
        given = f"--account=a --time=24:00:00 --nodelist={host} --time=1 --deadline=now+11minutes"
        assert f"--job-name=headway-{RUN}-sweep" in line and given in line
        module = "/py -m headway.launch.machine.sweep"
        assert line.endswith(f"--wrap=exec {module} '/s p' {tmp_path}/shared")


@pytest.mark.usefixtures("allocated")
def test_a_machine_is_cut_off_by_its_fence_alone(tmp_path: Path) -> None:
    assert not _machines().cut_off(1, limit_s=5.0)
    assert "scancel --signal=KILL 7.1" in _asked(tmp_path)
    fence = ("sh", "-c", f'echo "$0" > {tmp_path}/off', "{name}")
    hosts = ("node-0", "node-1", "node-2")
    config = SlurmRun("/x", sys.executable, fence=fence, job="7", hosts=hosts)
    assert _machines(config).cut_off(1, limit_s=5.0)
    assert (tmp_path / "off").read_text() == "node-1\n"


def _fencing(tmp_path: Path) -> SlurmMachines:
    fence = ("sh", "-c", f'echo "$0" > {tmp_path}/off', "{name}")
    hosts = ("node-0", "node-1", "node-2")
    return _machines(SlurmRun("/x", sys.executable, fence=fence, job="7", hosts=hosts))


def test_a_machine_that_left_the_run_keeps_its_power(
    slurm: Callable[..., None], tmp_path: Path
) -> None:
    """Slurm may have given it to somebody else."""
    slurm("squeue", text=_squeue(f"7|headway-{RUN}|RUNNING|node-[0,2]|None", "7.0|n0|node-0"))
    slurm("scontrol", "node-0\nnode-2")
    assert not _fencing(tmp_path).cut_off(1, limit_s=5.0)
    assert not (tmp_path / "off").exists()


@pytest.mark.parametrize("program", ["squeue", "scancel"])
def test_a_fence_does_not_depend_on_the_controller(
    allocated: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    machines = _fencing(tmp_path)
    assert machines.place(1) is not None
    allocated(program, err=NO_CONTROLLER, code=1)
    monkeypatch.setattr("headway.launch.engines.slurm.machines.LOOK_S", 0.0)
    assert machines.cut_off(1, limit_s=5.0)
    assert (tmp_path / "off").read_text() == "node-1\n"


def test_what_a_site_prints_beside_the_number_of_a_job_is_left_out(
    allocated: Callable[..., None],
) -> None:
    allocated("sbatch", "NOTE: quota is low\n123;cluster")
    assert commands.submit("a", 1, [], ["true"]) == "123"
    allocated("sbatch", "queued, see the web page")
    with pytest.raises(
        HeadwayError, match=r"'queued, see the web page' instead of a job number"
    ) as one:
        commands.submit("a", 1, [], ["true"])
    assert "scancel --name=a" in one.value.remedy


@pytest.mark.usefixtures("allocated")
def test_a_bad_machine_is_drained_by_its_name_in_slurm(tmp_path: Path) -> None:
    drain = ("sh", "-c", f'echo "$@" > {tmp_path}/bad', "sh", "{name}", "{reason}")
    hosts = ("node-0", "node-1", "node-2")
    config = SlurmRun("/x", sys.executable, drain=drain, job="7", hosts=hosts)
    _machines(config).report_bad(2, "Xid 79", limit_s=5.0)
    assert (tmp_path / "bad").read_text() == "node-2 Xid 79\n"


def test_a_refusal_stays_one(allocated: Callable[..., None]) -> None:
    allocated("srun", text="cat > /dev/null; echo 'error: wrong' >&2; exit 2")
    with pytest.raises(InputError, match="node-1: wrong"):
        _machines().call(1, "start", "", limit_s=20.0)


def test_a_machine_is_cut_off_if_slurm_stops_answering_between_two_questions(
    slurm: Callable[..., None], tmp_path: Path
) -> None:
    asks = f"case \"$*\" in *--steps*) echo '{NO_CONTROLLER}' >&2; exit 1;; *) "
    slurm("squeue", text=asks + f"echo '{ALLOCATION}';; esac")
    mark = tmp_path / "off"
    hosts = ("node-0", "node-1", "node-2")
    fence = ("touch", f"{mark}-{{name}}")
    config = SlurmRun("/x", sys.executable, job="7", hosts=hosts, fence=fence)
    machines = _machines(config)
    with pytest.raises(UnreachableError):
        machines.call(1, "end", "", limit_s=5.0)
    assert not machines.cut_off(1, limit_s=5.0), "nothing is known of its place"
    slurm("squeue", text=_squeue(ALLOCATION))
    slurm("scontrol", "node-0\nnode-1\nnode-2")
    slurm("scancel")
    assert machines.cut_off(1, limit_s=5.0) and Path(f"{mark}-node-1").exists()
