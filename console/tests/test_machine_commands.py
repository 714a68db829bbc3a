"""Commands about machines that cannot work are one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.errors import ConfigError
from headway.common.node.files import replace_file
from headway.console.cli import main
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.choose import config_of
from headway.launch.engines.remote.config_file import read_config
from headway.launch.engines.slurm.config import SlurmRun
from headway.launch.engines.ssh.config import HostsConfig, HostsRun


def test_a_ticket_that_is_none_is_refused(own_roots: Path) -> None:
    ticket = own_roots / "ticket.json"
    command = [sys.executable, "-m", "headway.console", "node", "init", "--ticket", str(ticket)]
    for text, line in (
        (None, f"error: cannot read {ticket}: No such file or directory; "),
        ("{}", "error: standard input is not a valid ticket: configuration key 'run_id' is mis"),
    ):
        if text is not None:
            replace_file(ticket, text)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and done.stderr.startswith(line)
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_ticket_that_others_can_read_is_refused(
    own_roots: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ticket = own_roots / "ticket.json"
    ticket.touch()
    ticket.chmod(mode)
    assert main(["node", "init", "--ticket", str(ticket)]) == 2
    line = f"error: {ticket} has mode {mode:04o}: other users can read it; chmod 600 {ticket}\n"
    assert capsys.readouterr().err == line


def test_a_folder_is_not_a_ticket(own_roots: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "init", "--ticket", str(own_roots)]) == 2
    assert f"cannot read {own_roots}: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--interface", "lo"), ("--ports", "7000-7009")], ids=str)
def test_a_network_of_machines_is_not_set_where_they_are_listed(
    words: tuple[str, ...], own_roots: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = own_roots / "cluster", own_roots / "hosts.toml"
    assert main(["cluster", "create", str(folder), "--hosts", str(file), *words]) == 2
    assert "set launch.interface and launch.ports" in capsys.readouterr().err


def test_a_cluster_that_is_not_there(own_roots: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(own_roots / "typo")
    assert main(["cluster", "drain", folder]) == 2
    assert "holds no cluster" in capsys.readouterr().err
    assert main(["cluster", "remove", folder]) == 0
    assert "there was no cluster to remove" in capsys.readouterr().out


def test_errors_in_the_file_of_hosts_name_it(own_roots: Path) -> None:
    file = own_roots / "my-hosts.toml"
    with pytest.raises(ConfigError, match=r"there is no file \S*/my-hosts.toml"):
        read_config(HostsConfig, file)
    file.write_text('shared = "/s"\npyhton = "x"\n[[hosts]]\nname = "a"\n')
    with pytest.raises(ConfigError, match=r"my-hosts.toml: unknown .*'pyhton'") as caught:
        read_config(HostsConfig, file)
    assert caught.value.remedy == "did you mean python?"
    file.write_text('shared = "/s"\nhosts = ["a"]\n')
    with pytest.raises(ConfigError) as caught:
        read_config(HostsConfig, file)
    assert caught.value.remedy == "write it as [[hosts]] with keys below"


def test_a_topology_next_to_the_list_of_machines_is_kept_or_refused(
    own_roots: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts, cluster = own_roots / "hosts.toml", own_roots / "cluster"
    hosts.write_text('shared = "/s"\n[[hosts]]\nname = "a"\n[[hosts]]\nname = "b"\n')
    (own_roots / "topology.toml").write_text('a = ["spine", "x"]\nc = ["spine", "y"]\n')
    words = ["cluster", "create", str(cluster), "--hosts", str(hosts)]
    assert main(words) == 2 and not cluster.exists()
    said = capsys.readouterr().err
    assert said.startswith("error: the topology names c, not in hosts.toml; ")
    assert len(said.splitlines()) == 1
    (own_roots / "topology.toml").write_text('a = ["spine", "x"]\n')
    assert main(words) == 0
    kept = config_of(ClusterFolder(cluster).engine)
    assert isinstance(kept, HostsRun) and kept.chains == {"a": ("spine", "x")}


def test_the_topology_of_a_slurm_cluster_is_kept(own_roots: Path) -> None:
    slurm, cluster = own_roots / "slurm.toml", own_roots / "cluster"
    slurm.write_text('shared = "/s"\n')
    (own_roots / "topology.toml").write_text('a = ["spine", "x"]\n')
    assert main(["cluster", "create", str(cluster), "--slurm", str(slurm)]) == 0
    kept = config_of(ClusterFolder(cluster).engine)
    assert isinstance(kept, SlurmRun) and kept.chains == {"a": ("spine", "x")}


def test_a_folder_that_cannot_be_read_is_one_line(
    own_roots: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/mnt/shared/control")

    monkeypatch.setattr("headway.console.commands.options.open_run", fail, raising=False)
    monkeypatch.setattr("headway.console.cluster.Cluster.run", fail)
    assert main(["status", "new", "--runs-dir", str(own_roots)]) == 1
    line = "error: /mnt/shared/control: Permission denied; check the disk and its rights\n"
    assert capsys.readouterr().err == line


def test_a_gateway_that_cannot_listen_leaves_no_file(own_roots: Path) -> None:
    key = own_roots / "gateway.key"
    (own_roots / "runs").mkdir()
    words = ["--key-file", str(key), "--runs-dir", str(own_roots / "runs")]
    command = [sys.executable, "-m", "headway.console", "gateway", *words]
    elsewhere = ["--listen", "tcp://192.0.2.1:7070"]
    done = subprocess.run([*command, *elsewhere], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "error: " in done.stderr.splitlines()[-1]
    assert list(own_roots.glob("gateway.key*")) == []


def test_the_description_of_a_host_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    from headway.launch.machine.__main__ import main as join

    assert join(["describe"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"gpus", "cpu_flags", "compiler_lack"}
