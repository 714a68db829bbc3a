"""Slurm's file, and its commands with answers recorded from Slurm 22.05."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from headway.common.errors import ConfigError, DeadlineError, HeadwayError
from headway.common.wire.addresses import Network
from headway.launch.engine import NodeLost
from headway.launch.engines.choose import config_of, facts_of, of_bundle
from headway.launch.engines.remote.config_file import read_config
from headway.launch.engines.remote.reach import UnreachableError
from headway.launch.engines.slurm import commands
from headway.launch.engines.slurm.config import SlurmConfig, SlurmRun
from headway.launch.join.bundle import Bundle

NO_CONTROLLER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
RUN = "0123ab03"


# ---- the file -----------------------------------------------------------------------------------
BAD = {
    'shared = "x"': "not an absolute path",
    'shared = "/x"\nnotice_s = 0': "out of range",
    'shared = "/x"\nnotice_s = 100000': "out of range",
    'shared = "/x"\noptions = ["-N4"]': "cannot be used",
    'shared = "/x"\noptions = ["--arr=0-3"]': "cannot be used",
    'shared = "/x"\noptions = ["--requeue"]': "cannot be used",
    'shared = "/x"\noptions = ["--partition train"]': "cannot be used",
    'shared = "/x"\noptions = ["--nodes=3"]': "cannot be used",
    'shared = "/x"\noptions = ["train"]': "cannot be used",
    'shared = "/x"\nfence = ["off"]': "does not contain {name}",
    'shared = "/x"\njob = "7"': "job",
    'partition = "x"': "partition",
}


@pytest.mark.parametrize(("text", "expected"), BAD.items(), ids=BAD.values())
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "slurm.toml").write_text(text + "\n")
    with pytest.raises(ConfigError, match=expected) as error:
        read_config(SlurmConfig, tmp_path / "slurm.toml")
    assert error.value.remedy


def test_a_bundle_keeps_what_slurm_gave(tmp_path: Path) -> None:
    config = SlurmConfig("/x", options=("--partition=a",))
    assert config_of(facts_of(config)) == SlurmRun(**vars(config))
    given = SlurmRun(**vars(config), job="7", hosts=("a", "b"))
    bundle = Bundle(RUN, "a", 2, "", Network(), facts_of(given), str(tmp_path), "ab")
    again = Bundle.from_json(bundle.to_json(), source="it")
    assert config_of(again.engine) == given and of_bundle(again).name_of(1) == "b"
    with pytest.raises(NodeLost, match="none for node 2"):
        of_bundle(again).name_of(2)


# ---- commands -----------------------------------------------------------------------------------
def test_a_controller_that_does_not_answer_is_unknown_and_a_refusal_is_one(
    slurm: Callable[..., None],
) -> None:
    slurm("squeue", err=NO_CONTROLLER, code=1)
    with pytest.raises(UnreachableError, match="does not respond"):
        commands.jobs(["a"])
    slurm("sbatch", err="sbatch: error: invalid partition specified: x", code=1)
    with pytest.raises(HeadwayError, match=r"refuses: .*invalid partition") as refused:
        commands.submit("a", 1, [], ["true"])
    assert not isinstance(refused.value, UnreachableError)
    slurm("scancel", err="scancel: error: Kill job error on job id 9: Invalid job id", code=1)
    commands.cancel("9")


def test_slurm_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such/folder")
    with pytest.raises(DeadlineError, match="squeue cannot be run"):
        commands.jobs(["a"])


def test_a_step_begins_without_the_variables_of_the_one_that_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CONF", "SBATCH_PARTITION", "HEADWAY_NODE", "HEADWAY_CACHE"):
        monkeypatch.setenv(name, "x")
    kept = {"SLURM_CONF", "SBATCH_PARTITION", "HEADWAY_CACHE"}
    assert {name for name in kept if name in commands.environment("sbatch")} == kept
    srun = commands.environment("srun")
    assert not {"SLURM_JOB_ID", "SBATCH_PARTITION", "HEADWAY_NODE"} & srun.keys()
