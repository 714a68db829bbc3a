"""What `headway cluster check`, `status`, `left`, `logs` and `reach` print of a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId
from headway.common.output import to_json
from headway.console.cli import main
from headway.console.lifecycle import cluster_state
from headway.console.testing import FakeRun
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.choose import facts_of
from headway.launch.engines.slurm.config import SlurmConfig
from headway.launch.engines.ssh.config import Host, HostsConfig
from headway.launch.join import facts

Call = Callable[..., tuple[int, str, str]]
REACH = """\
#!/bin/sh
# "inspect" is answered by each machine with a name and machine-id of its own, and the nonce
grep -qx "$1" "$0.dead" && {{ echo "No route to host" >&2; exit 255; }}
case "$5" in
inspect) nonce=$(cat "$7/nonce"); echo "$nonce" | tr -d '\\n' > "$7/$1"
    echo '{facts}' | sed "s/NONCE/$nonce/;s/WROTE/$1/;s/UID/$1/" ;;
left) cat "$0.left" ;;
esac
"""


class Fleet:
    """Three machines behind a script, listed in a file and in a cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder, reach = folder, folder / "reach"
        mine = vars(facts.look(None)) | {"uid": "UID", "nonce": "NONCE", "wrote": "WROTE"}
        mine |= {"shm_bytes": 8 << 30, "address": "10.1.2.3", "torch": "2.13.0"}
        reach.write_text(REACH.format(facts=json.dumps(mine)))
        reach.chmod(0o700)
        self._reach = reach
        self.die()
        self.leave()
        (folder / "shared").mkdir()
        self.hosts = HostsConfig(
            str(folder / "shared"),
            tuple(Host(name) for name in "abc"),
            sys.executable,
            (str(reach), "{name}"),
        )
        self.cluster = ClusterFolder(folder / "cluster")
        self.file = folder / "hosts.toml"
        rows = "".join(f'[[hosts]]\nname = "{name}"\n' for name in "abc")
        self.file.write_text(f'shared = "{folder}/shared"\nreach = ["{reach}", "{{name}}"]\n{rows}')

    def create(self) -> None:
        ClusterFolder.create(self.cluster.path, nodes=3, engine=facts_of(self.hosts))

    def die(self, *names: str) -> None:
        self._reach.with_suffix(".dead").write_text("".join(f"{name}\n" for name in names))

    def leave(self, *lines: str) -> None:
        self._reach.with_suffix(".left").write_text(to_json(lines) + "\n")


@pytest.fixture
def fleet(own_roots: Path) -> Fleet:
    return Fleet(own_roots)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """(exit code, stdout, stderr) of one command."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["cluster", *(str(one) for one in arguments)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


# ---- check --------------------------------------------------------------------------------------
def test_machines_in_order_are_summed_up_and_kept_for_terraform(fleet: Fleet, call: Call) -> None:
    kept = fleet.folder / "machines.json"
    code, out, err = call("check", "--hosts", fleet.file, "--save", kept)
    assert (code, err) == (0, "") and out.startswith("3 machines in order: Headway ")
    found = json.loads(kept.read_text())
    assert [one["name"] for one in found["machines"]] == ["a", "b", "c"]
    assert found["network"] == "10.1.2.0/24"
    assert {one["trouble"] for one in found["machines"]} == {""}
    assert not fleet.cluster.path.exists() and not list((fleet.folder / "shared").iterdir())


def test_a_line_for_each_machine_that_fails_and_nothing_is_kept(fleet: Fleet, call: Call) -> None:
    fleet.die("a", "c")
    kept = fleet.folder / "machines.json"
    code, out, err = call("check", "--hosts", fleet.file, "--save", kept)
    assert (code, out) == (1, "") and not kept.exists()
    assert [line[:21] for line in err.splitlines()] == [
        "a: cannot be reached:", "c: cannot be reached:",
    ]  # fmt: skip
    assert call("check", "--hosts", fleet.file, "--nodes", "3")[0] == 1
    fleet.die("c")
    assert call("check", "--hosts", fleet.file, "--nodes", "2")[0] == 0, "c is not one of them"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "exactly one of DIR, --hosts and --slurm is needed"),
        (("--hosts", "absent.toml"), "there is no file absent.toml"),
        (("--hosts", "FILE", "--nodes", "4"), "4 nodes are asked for, hosts.toml lists 3 machines"),
        (("absent",), "holds no cluster"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_line(
    words: tuple[str, ...], expected: str, fleet: Fleet, call: Call
) -> None:
    given = [str(fleet.file) if word == "FILE" else word for word in words]
    code, _, err = call("check", *given)
    assert code == 2 and expected in err and len(err.splitlines()) == 1


def test_a_topology_that_cannot_be_used_is_found_by_check(fleet: Fleet, call: Call) -> None:
    (fleet.folder / "topology.toml").write_text('a = ["spine"')
    code, _, err = call("check", "--hosts", fleet.file)
    assert code == 2 and "topology.toml" in err


def test_without_slurm_that_is_what_is_said(
    own_roots: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_roots / "slurm.toml").write_text(f'shared = "{own_roots}"\n')
    monkeypatch.setenv("PATH", str(own_roots))
    code, _, err = call("check", "--slurm", own_roots / "slurm.toml")
    assert code == 1 and "sinfo cannot be run: No such file" in err


# ---- status -------------------------------------------------------------------------------------
def test_a_machine_that_is_silent_has_drifted(fleet: Fleet, call: Call) -> None:
    fleet.create()
    kept = fleet.folder / "machines.json"
    code, out, _ = call("status", fleet.cluster.path, "--save", kept)
    assert code == 0
    assert out.splitlines() == [f"{fleet.cluster.path}: 3 nodes, no drift", "no run"]
    fleet.die("b")
    code, out, _ = call("status", fleet.cluster.path, "--save", kept)
    assert code == 2 and "\ndrift: b: cannot be reached: No route to host (check" in out
    rows = json.loads(kept.read_text())["machines"]
    assert [bool(one["trouble"]) for one in rows] == [False, True, False]
    found = json.loads(call("status", fleet.cluster.path, "--json")[1])
    assert list(found) == ["cluster", "nodes", "drift", "runs", "machines"]
    assert found["machines"][1]["gpus"] is None


def test_the_runs_of_emulated_nodes_are_shown_with_those_that_died(
    fake: FakeRun, call: Call
) -> None:
    fake.cluster.resize(2)
    code, out, _ = call("status", fake.cluster.path)
    assert code == 2
    drift = [line for line in out.splitlines() if line.startswith("drift: ")]
    assert "drift: node 1 has no executor" in drift
    assert any(line.startswith(f"run {fake.run.name}: live, step ") for line in out.splitlines())
    (fake.cluster.path / "nodes" / "1.lost").touch()
    assert "drift: node 1 was given up as lost" in call("status", fake.cluster.path)[1]


def test_slurm_that_does_not_answer_is_drift(
    own_roots: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(own_roots))
    folder = own_roots / "cluster"
    ClusterFolder.create(folder, nodes=0, engine=facts_of(SlurmConfig(str(own_roots))))
    code, out, _ = call("status", folder)
    assert code == 2 and "Slurm provides the machines of each run, drifted" in out
    assert "drift: sinfo cannot be run" in out


# ---- what is left, logs, shells -----------------------------------------------------------------
def test_what_is_left_is_listed_with_its_machine(
    fleet: Fleet, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_state, "SETTLE_S", 0.0)
    fleet.create()
    assert call("left", fleet.cluster.path) == (0, "nothing is left\n", ""), "no run was started"
    fleet.cluster.note("abcd1234", fleet.folder / "gone")
    assert call("left", fleet.cluster.path)[0] == 0
    assert fleet.cluster.noted() == {} and fleet.cluster.run_ids() == ["abcd1234"], "it is over"
    fleet.leave("executor of abcd1234, pid 7")
    fleet.die("c")
    code, out, _ = call("left", fleet.cluster.path)
    assert code == 1
    first, second, third = out.splitlines()
    assert (first, second) == tuple(f"{name}: executor of abcd1234, pid 7" for name in "ab")
    assert third.startswith("c: not known, as it cannot be reached")


def test_the_logs_of_emulated_nodes_are_those_in_the_folder(own_roots: Path, call: Call) -> None:
    cluster = ClusterFolder.create(own_roots / "cluster", nodes=2)
    cluster.announce(0, "tcp://127.0.0.1:1", ProcessId.current())
    (cluster.path / "logs" / "n1-init.log").write_text("one line\n")
    assert call("logs", cluster.path, "--node", "1")[1] == "==> n1-init.log <==\none line\n\n"
    rows = json.loads(call("logs", cluster.path, "--json")[1])
    assert [list(row) for row in rows] == [["node", "run", "text"]] * 2
    assert call("logs", cluster.path, "--node", "2")[2] == (
        "error: the cluster has no node 2; use 0 to 1\n"
    )


def test_machines_without_a_run_have_no_logs(fleet: Fleet, call: Call) -> None:
    fleet.create()
    code, _, err = call("logs", fleet.cluster.path)
    assert code == 2 and "so there are no logs; `headway logs RUN` shows" in err


def test_a_shell_is_the_command_that_reaches_the_machine(fleet: Fleet, call: Call) -> None:
    fleet.create()
    reach = fleet.folder / "reach"
    assert call("reach", fleet.cluster.path, "--node", "2") == (0, f"{reach} c\n", "")
    assert call("reach", fleet.cluster.path, "--node", "3")[2] == (
        "error: the cluster has no node 3; use 0 to 2\n"
    )
    slurm = fleet.folder / "slurm"
    ClusterFolder.create(slurm, nodes=0, engine=facts_of(SlurmConfig(str(fleet.folder))))
    assert "no live run of" in call("reach", slurm, "--node", "0")[2]
    here = ClusterFolder.create(fleet.folder / "here", nodes=1)
    assert cluster_state.reach(here, 0)[-1] == "bash"
    assert cluster_state.reach(here, 0, ["pwd"])[-1] == "pwd"
    code, out, _ = call("reach", fleet.cluster.path, "--node", "0", "--", "echo", "-n", "a  b")
    assert (code, out) == (0, f"{reach} a echo -n ''\"'\"'a  b'\"'\"''\n")


# ---- another list -------------------------------------------------------------------------------
def test_a_cluster_of_machines_gets_another_list_and_keeps_its_keys(
    fleet: Fleet, call: Call
) -> None:
    assert call("create", fleet.cluster.path, "--hosts", fleet.file, "--nodes", "2")[0] == 0
    before = (fleet.cluster.id, fleet.cluster.key_of("console"))
    assert [host["name"] for host in fleet.cluster.engine["hosts"]] == ["a", "b"]
    code, out, _ = call("create", fleet.cluster.path, "--hosts", fleet.file)
    assert (code, out) == (0, f"{fleet.cluster.path}: 3 machines\n")
    assert (fleet.cluster.id, fleet.cluster.key_of("console")) == before
    assert fleet.cluster.nodes == 3
    (fleet.folder / "slurm.toml").write_text(f'shared = "{fleet.folder}"\n')
    code, _, err = call("create", fleet.cluster.path, "--slurm", fleet.folder / "slurm.toml")
    assert code == 2 and "come from hosts, not from slurm; use another folder" in err
