"""A start on machines that is refused, and what it leaves."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError, InputError
from headway.common.node.run_dir import RunDir
from headway.console.cli import main
from headway.console.cluster import Cluster
from headway.console.folder.claim import StillRunningError, claimed, keep_config
from headway.console.lifecycle import launch, machines
from headway.console.lifecycle.shared_folder import shared_folder
from headway.console.run import Run
from headway.console.testing import SMALL, touch_corpus
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.choose import facts_of, hardware_of
from headway.launch.engines.slurm.config import SlurmConfig
from headway.launch.engines.ssh.config import Host, HostsConfig
from headway.launch.join import records
from headway.launch.join.bundle import Bundle
from headway.launch.lease.base import Holder
from headway.launch.lease.file import FileLease
from headway.trainer.config import RunConfig

LOCALLY = """\
#!/bin/sh
shift
exec "$@"
"""


@pytest.fixture
def reach(own_roots: Path) -> tuple[str, str]:
    """A command that runs its words on this machine."""
    script = own_roots / "reach"
    script.write_text(LOCALLY)
    script.chmod(0o700)
    return (str(script), "{name}")


@pytest.fixture
def hosts(own_roots: Path, reach: tuple[str, str]) -> HostsConfig:
    two = (Host("a"), Host("b"))
    return HostsConfig(str(own_roots / "shared"), two, python=sys.executable, reach=reach)


def _config(corpus: Path, **launch: object) -> RunConfig:
    facts: dict[str, object] = {"ranks_per_node": 1, "interface": "127.0.0.0/8", **launch}
    return dataclasses.replace(
        SMALL,
        data=dataclasses.replace(SMALL.data, path=str(corpus)),
        launch=dataclasses.replace(SMALL.launch, nodes=2, **facts),  # type: ignore[arg-type]
    )


def _start(folder: Path, hosts: HostsConfig, config: RunConfig) -> Cluster:
    cluster = folder / "cluster"
    if not cluster.exists():
        ClusterFolder.create(cluster, nodes=2, engine=facts_of(hosts))
    known = Cluster(folder / "runs", folder=cluster)
    known.launch(config, name="new")
    return known


def test_too_few_machines_are_reported_before_a_corpus_is_prepared(
    own_roots: Path, hosts: HostsConfig
) -> None:
    config = _config(own_roots / "not-there", spares=1)
    with pytest.raises(InputError, match=r"the run needs 3 nodes, hosts\.toml lists 2"):
        _start(own_roots, hosts, config)
    assert not (own_roots / "shared").exists() and not (own_roots / "runs").exists()


def test_a_shared_folder_that_cannot_be_made_is_reported_first(
    own_roots: Path, hosts: HostsConfig
) -> None:
    (own_roots / "file").touch()
    hosts = dataclasses.replace(hosts, shared=str(own_roots / "file" / "shared"))
    with pytest.raises(InputError, match=r"cannot make \S*/file/shared: is not a folder"):
        _start(own_roots, hosts, _config(own_roots / "not-there"))


def test_slurm_without_its_commands_is_reported_first(
    own_roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    config = _config(own_roots / "not-there")
    with pytest.raises(InputError, match="there is no sbatch on this machine's PATH"):
        machines.check_machines(SlurmConfig(str(own_roots)), config)


def _prepared(folder: Path, config: RunConfig) -> tuple[Run, ClusterFolder]:
    touch_corpus(folder / "corpus")
    run = RunDir.create(folder / "runs" / "new", run_id="abcd1234")
    keep_config(Run(run.path), config)
    return Run(run.path), ClusterFolder.create(folder / "cluster", nodes=2)


def test_a_failed_start_leaves_nothing_in_the_shared_folder(
    own_roots: Path, hosts: HostsConfig
) -> None:
    run, cluster = _prepared(own_roots, _config(own_roots / "corpus"))
    hosts = dataclasses.replace(hosts, reach=("false", "{name}"))
    with pytest.raises(HeadwayError):
        launch.start_on_machines(run, cluster, hosts, print)
    assert list((own_roots / "shared").iterdir()) == []


class Unreached:
    """Machines of which the first one leads the run, before none of them is reached any more."""

    def __init__(self, bundle: Bundle) -> None:
        self._control = bundle.control

    def name_of(self, node: int) -> str:
        return "abc"[node]

    def prepare_all(self) -> None:
        pass

    def start_first(self) -> None:
        FileLease(self._control).publish(Holder(1, 0, 1, 1, "tcp://127.0.0.1:1", space="there"))

    def start_all(self, _: object) -> None:
        raise HeadwayError("c cannot be reached")

    def stop(self, _: object) -> list[str]:
        return ["node 0 on a: a cannot be reached"]


def test_a_failed_start_keeps_the_run_that_it_could_not_end(
    own_roots: Path, hosts: HostsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch_corpus(own_roots / "corpus")
    monkeypatch.setattr(machines.choose, "of_bundle", Unreached)
    monkeypatch.setattr(launch.preflight, "prepare_corpus", lambda *_: None)
    with pytest.raises(StillRunningError, match="node 0 on a: a cannot be reached") as caught:
        _start(own_roots, hosts, _config(own_roots / "corpus"))
    assert "headway stop new --now" in caught.value.remedy
    run = Run(own_roots / "runs" / "new")
    assert run.folder.bundle.exists() and FileLease(run.folder.control).look().holder is not None


def test_a_second_interruption_keeps_the_run_that_it_did_not_end(
    own_roots: Path, hosts: HostsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver may live although it has not written the lease yet."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    touch_corpus(own_roots / "corpus")
    monkeypatch.setattr(machines.choose, "of_bundle", Unreached)
    monkeypatch.setattr(launch.preflight, "prepare_corpus", lambda *_: None)
    for name in ("start_all", "stop"):
        monkeypatch.setattr(Unreached, name, interrupt)
    monkeypatch.setattr(Unreached, "start_first", lambda _: None)
    with pytest.raises(StillRunningError, match="ending it was interrupted"):
        _start(own_roots, hosts, _config(own_roots / "corpus"))
    assert Run(own_roots / "runs" / "new").folder.bundle.exists()


def test_a_driver_that_cannot_start_is_the_cause_where_others_cannot_join(
    own_roots: Path, hosts: HostsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "error: cannot listen on tcp://10.0.0.5: the ports 7000-7000 are all in use"
    touch_corpus(own_roots / "corpus")
    monkeypatch.setattr(machines.choose, "of_bundle", Unreached)
    monkeypatch.setattr(launch.preflight, "prepare_corpus", lambda *_: None)
    monkeypatch.setattr(Unreached, "start_first", lambda _: None)
    monkeypatch.setattr(Unreached, "stop", lambda *_: [])
    for log, expected in ((said, said), ("up", "c cannot be reached")):
        logs = f"==> n0-driver.log <==\n{log}\n"
        monkeypatch.setattr(Unreached, "logs", lambda *_, logs=logs: logs, raising=False)
        with pytest.raises(HeadwayError) as caught:
            _start(own_roots, hosts, _config(own_roots / "corpus"))
        assert expected in str(caught.value)


def test_a_run_on_machines_is_resumed_on_them(own_roots: Path, hosts: HostsConfig) -> None:
    run, cluster = _prepared(own_roots, _config(own_roots / "corpus"))
    assert machines.began_on(run.path) == (None, "") == machines.began_on(own_roots / "absent")
    machines.prepare(run, cluster, hosts, print)
    record = json.loads(run.folder.run_json.read_text())
    run.folder.run_json.write_text(json.dumps({**record, "cluster": str(cluster.path)}))
    assert machines.began_on(run.path) == (cluster.path, "")
    own = str(run.path / "cluster")  # as with --engine slurm
    run.folder.run_json.write_text(json.dumps({**record, "cluster": own}))
    assert machines.began_on(run.path) == (None, "slurm")


def test_files_of_sinks_would_be_lost_with_the_disk_of_a_machine(
    own_roots: Path, hosts: HostsConfig
) -> None:
    config = _config(own_roots / "corpus", sinks=("tensorboard",))
    with pytest.raises(InputError, match="removed at the end of the run"):
        machines.check_machines(hosts, config)


def test_what_a_run_already_had_in_the_shared_folder_survives_a_failed_start(
    own_roots: Path, hosts: HostsConfig
) -> None:
    run, cluster = _prepared(own_roots, _config(own_roots / "corpus"))
    kept = shared_folder(run, hosts) / "checkpoints" / "step-1"
    kept.mkdir(parents=True)
    hosts = dataclasses.replace(hosts, reach=("false", "{name}"))
    with pytest.raises(HeadwayError):
        launch.start_on_machines(run, cluster, hosts, print)
    assert kept.exists()


def test_a_run_is_not_resumed_with_another_shared_folder(
    own_roots: Path, hosts: HostsConfig
) -> None:
    run, cluster = _prepared(own_roots, _config(own_roots / "corpus"))
    machines.prepare(run, cluster, hosts, print)
    other = dataclasses.replace(hosts, shared=str(own_roots / "other"))
    with pytest.raises(
        InputError, match=r"folder control of the run is .*/shared/.*, not .*/other/"
    ):
        machines.prepare(run, cluster, other, print)
    assert not (own_roots / "other").exists()


def test_logs_that_nodes_kept_at_their_end_are_taken_before_the_next_start(
    own_roots: Path, hosts: HostsConfig
) -> None:
    run, cluster = _prepared(own_roots, _config(own_roots / "corpus"))
    bundle = machines.prepare(run, cluster, hosts, print)
    node = own_roots / "node"
    (node / "logs").mkdir(parents=True)
    (node / "logs" / "n1-rank0.log").write_text("the last words\n")
    kept = bundle.records_of(1)
    kept.parent.mkdir()
    kept.write_text(records.pack(node))
    bundle.records_of(0).write_text("no archive")
    lines: list[str] = []
    machines.prepare(run, cluster, hosts, lines.append)
    assert (run.path / "logs" / "n1-rank0.log").read_text() == "the last words\n"
    [aside] = kept.parent.iterdir()
    assert aside.read_text() == "no archive" and aside != bundle.records_of(0)
    assert [line for line in lines if f"the logs in {aside} could not be" in line] == lines != []


# ---- auto: what the machines have, not the console's ---------------------------------------------
def test_auto_is_decided_by_the_first_host(own_roots: Path, reach: tuple[str, str]) -> None:
    answer = own_roots / "python"
    answer.write_text(
        '#!/bin/sh\necho \'{"gpus": 2, "cpu_flags": "flags : fpu", "compiler_lack": ""}\'\n'
    )
    answer.chmod(0o700)
    hosts = HostsConfig(str(own_roots), (Host("a"),), python=str(answer), reach=reach)
    train = dataclasses.replace(SMALL.train, device="auto", dtype="auto")
    config = dataclasses.replace(_config(own_roots), train=train)
    resolved, line = machines.resolve_on_machines(config, hosts)
    assert (resolved.train.device, resolved.train.dtype) == ("gpu", "bf16")
    assert "GPUs: 2, ranks: 1" in line
    answer.write_text(answer.read_text().replace('"gpus": 2', '"gpus": 0'))
    resolved, _ = machines.resolve_on_machines(config, hosts)
    assert (resolved.train.device, resolved.train.dtype) == ("cpu", "fp32")


def test_a_host_that_prints_a_greeting(own_roots: Path, reach: tuple[str, str]) -> None:
    answer = own_roots / "python"
    answer.write_text(
        '#!/bin/sh\necho Welcome\necho \'{"gpus": 1, "cpu_flags": "", "compiler_lack": ""}\'\n'
    )
    answer.chmod(0o700)
    hosts = HostsConfig(str(own_roots), (Host("a"),), python=str(answer), reach=reach)
    assert hardware_of(hosts, 1).gpus == 1
    answer.write_text("#!/bin/sh\necho Welcome\n")
    with pytest.raises(HeadwayError, match=r"a printed 'Welcome\\n' and not what it has"):
        hardware_of(hosts, 1)


def test_a_real_host_describes_itself(hosts: HostsConfig, own_roots: Path) -> None:
    train = dataclasses.replace(SMALL.train, device="auto", dtype="auto")
    config = dataclasses.replace(_config(own_roots), train=train)
    resolved, _ = machines.resolve_on_machines(config, hosts)
    assert resolved.train.device in ("cpu", "gpu") and resolved.train.dtype in ("bf16", "fp32")


@pytest.mark.parametrize(
    ("options", "device"),
    [
        (("--gpus-per-node=8",), "gpu"),
        (("--gres=gpu:8",), "gpu"),
        (("--gres=license:1,gpu:a100:2",), "gpu"),
        (("-G8",), "gpu"),
        (("--partition=gpu",), "cpu"),
        (("--gres=lustre:1",), "cpu"),
        ((), "cpu"),
    ],
)
def test_auto_in_slurm_means_what_the_job_asks_for(
    options: tuple[str, ...], device: str, own_roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("SBATCH_")]:
        monkeypatch.delenv(name)
    train = dataclasses.replace(SMALL.train, device="auto", dtype="fp32")
    config = dataclasses.replace(_config(own_roots), train=train)
    slurm = SlurmConfig(str(own_roots), options=options)
    assert machines.resolve_on_machines(config, slurm)[0].train.device == device
    monkeypatch.setenv("SBATCH_GPUS_PER_NODE", "8")
    assert machines.resolve_on_machines(config, slurm)[0].train.device == "gpu"


def test_the_peak_of_other_machines_is_not_known(own_roots: Path, hosts: HostsConfig) -> None:
    run, cluster = _prepared(own_roots, _config(own_roots / "corpus"))
    machines.prepare(run, cluster, hosts, print)
    assert run.peak is None


# ---- words that were mistyped -------------------------------------------------------------------
@pytest.mark.parametrize("verb", ["start", "stop", "init"])
def test_a_node_of_a_cluster_of_machines_is_not_emulated_here(
    verb: str, own_roots: Path, hosts: HostsConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(own_roots / "cluster")
    ClusterFolder.create(Path(folder), nodes=2, engine=facts_of(hosts))
    assert main(["node", verb, "--cluster", folder, "--node", "0"]) == 2
    assert "are machines, which join when a run starts" in capsys.readouterr().err
    assert main(["cluster", "create", folder, "--nodes", "3"]) == 2


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--node", "0"),
        ("--cluster", "mine"),
        ("--ticket", "t", "--cluster", "c", "--node", "0"),
    ],
    ids=str,
)
def test_half_of_a_node_has_no_init(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["node", "init", *words]) == 2
    assert "either --ticket, or --cluster and --node are needed" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["drain", "remove"])
def test_a_run_that_is_being_started_keeps_its_cluster(
    verb: str, own_roots: Path, hosts: HostsConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    run, cluster = _prepared(own_roots, _config(own_roots / "corpus"))
    cluster.note(run.folder.run_id, run.path)
    machines.prepare(run, cluster, hosts, print)
    with claimed(run.path, print):
        assert main(["cluster", verb, str(cluster.path)]) == 2
    assert f"run new is being started (process {os.getpid()} on" in capsys.readouterr().err
    assert main(["cluster", "drain", str(cluster.path)]) == 0
    assert cluster.noted() == {run.folder.run_id: run.path}, "it is not over"
