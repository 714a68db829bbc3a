"""``topology.toml`` and the command that prints one: what is used, refused or only warned of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from headway.common.errors import ConfigError, DeadlineError
from headway.common.node.run_dir import RunDir
from headway.common.plan.grid import Grid
from headway.common.plan.nearest import place
from headway.common.plan.topology import Chain, Topology
from headway.common.plan.traffic import Ring, Traffic
from headway.common.wire.addresses import Network
from headway.launch.engines.choose import MachinesConfig, facts_of, provide, topology_of
from headway.launch.engines.remote import topology_file
from headway.launch.engines.ssh.config import Host, HostsConfig, HostsRun
from headway.launch.join.bundle import Bundle

TWO_LEAVES = """\
gpu-01 = ["spine", "leaf-1"]
gpu-02 = ["spine", "leaf-2"]
"10.0.0.3" = ["spine", "leaf-1"]
"""
CHAINS: dict[str, Chain] = {
    "gpu-01": ("spine", "leaf-1"),
    "gpu-02": ("spine", "leaf-2"),
    "10.0.0.3": ("spine", "leaf-1"),
}
HOSTS = tuple(map(Host, ("gpu-01", "gpu-02", "10.0.0.3")))


def _config(command: tuple[str, ...] = (), **more: object) -> HostsConfig:
    return HostsConfig("/mnt/x", HOSTS, topology=command, **more)  # type: ignore[arg-type]


def _provide(config: MachinesConfig, nodes: int, said: list[str]) -> HostsRun:
    found = provide(config, nodes, run_id="0123abcd", control=Path("/x"), report=said.append)
    assert isinstance(found, HostsRun)
    return found


def _print(text: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import sys; sys.stdout.write({text!r})", *words)


# ---- the file -----------------------------------------------------------------------------------
def test_the_file_next_to_the_list_of_machines_is_read(tmp_path: Path) -> None:
    assert topology_file.read_next_to(tmp_path / "hosts.toml", ()) == {}, "there is none"
    (tmp_path / "topology.toml").write_text(TWO_LEAVES)
    assert topology_file.read_next_to(tmp_path / "hosts.toml", ()) == CHAINS
    with pytest.raises(ConfigError, match=r"hosts\.toml has the key topology, and there is") as two:
        topology_file.read_next_to(tmp_path / "hosts.toml", ("print",))
    assert two.value.remedy == "remove one of the two"


BAD = {
    "gpu-01 = [": "is not TOML",
    'me@gpu-01 = ["spine"]': "is not TOML",
    'gpu-01 = "leaf"': "gpu-01 is not a list of names of switches",
    "gpu-01 = []": "gpu-01 is not a list of names",
    'gpu-01 = ["spine", 3]': "gpu-01 is not a list of names",
    'gpu-01 = ["spine", ""]': "gpu-01 is not a list of names",
    '10.0.0.3 = ["spine"]': "10 is not a list of names",
    'a = ["spine", "leaf"]\nb = ["leaf"]': "b has 1 switches above it and a has 2",
}


@pytest.mark.parametrize(("text", "expected"), BAD.items(), ids=BAD.values())
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "topology.toml").write_text(text + "\n")
    with pytest.raises(ConfigError, match=expected) as error:
        topology_file.read_next_to(tmp_path / "hosts.toml", ())
    assert str(tmp_path / "topology.toml") in error.value.message
    assert error.value.remedy and "\n" not in str(error.value)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "topology.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"cannot read .*topology\.toml"):
        topology_file.read_next_to(tmp_path / "hosts.toml", ())


def test_unknown_machines_are_refused() -> None:
    chains = CHAINS | {"gpu-2": ("spine", "leaf-2")}
    with pytest.raises(ConfigError, match=r"names gpu-2, not in hosts\.toml") as error:
        HostsRun("/mnt/x", HOSTS, chains=chains)
    assert error.value.remedy


# ---- a run --------------------------------------------------------------------------------------
def test_a_run_keeps_the_switches_of_its_machines(tmp_path: Path) -> None:
    said: list[str] = []
    found = _provide(HostsRun("/mnt/x", HOSTS, chains=CHAINS), 2, said)
    assert said == [] and found.hosts == HOSTS[:2] and found.chains == {}
    assert found.switches == (("spine", "leaf-1"), ("spine", "leaf-2"))
    run = RunDir(tmp_path)
    network, facts = Network(), facts_of(found)
    Bundle("0123abcd", "name", 2, "", network, facts, "/x", "secret").save(run.bundle)
    assert topology_of(run) == Topology(found.switches)


def test_the_file_orders_the_machines() -> None:
    """The replicas of a stage are below one leaf, which has a spare of its own."""
    lines = [f'gpu-{number} = ["spine", "leaf-{number % 2}"]' for number in range(6)]
    chains = topology_file.parse("\n".join(lines), "topology.toml")
    found = _provide(HostsRun("/mnt/x", tuple(map(Host, chains)), chains=chains), 6, [])
    traffic = Traffic(Grid(pp=2, dp=2), (Ring("data parallel", "dp", (100, 100)),))
    assert place(traffic, 1, Topology(found.switches)).node_by_rank() == [0, 2, 1, 3]


def test_a_machine_that_is_missing_is_warned_of_and_is_at_no_known_place() -> None:
    said: list[str] = []
    some = {name: chain for name, chain in CHAINS.items() if name != "gpu-02"}
    found = _provide(HostsRun("/mnt/x", HOSTS, chains=some), 3, said)
    assert found.switches == (("spine", "leaf-1"), (), ("spine", "leaf-1"))
    [line] = said
    assert line.startswith("no switches are known above gpu-02, ") and "; add it" in line


def test_without_a_topology_no_switches_are_known_and_nothing_is_reported() -> None:
    said: list[str] = []
    assert _provide(_config(), 3, said).switches == () and said == []


# ---- the command --------------------------------------------------------------------------------
def test_a_command_is_asked_at_each_start() -> None:
    said: list[str] = []
    found = _provide(_config(_print(TWO_LEAVES)), 3, said)
    assert found.switches == tuple(CHAINS.values()) and said == []


def test_a_command_may_name_all_machines_of_a_site() -> None:
    said: list[str] = []
    found = _provide(HostsRun(**vars(_config(_print(TWO_LEAVES)))).first(2), 2, said)
    assert found.switches == tuple(CHAINS.values())[:2] and said == []


@pytest.mark.parametrize(
    ("program", "trouble"),
    [
        ("import sys; sys.exit('no credentials')", "failed: no credentials; "),
        ("raise SystemExit(3)", "failed: exit code 3; "),
        ("import time; time.sleep(600)", "did not end within 0.5 s; "),
    ],
)
def test_a_command_that_fails_or_hangs_is_warned_of(
    program: str, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in program:
        monkeypatch.setattr(topology_file, "COMMAND_LIMIT_S", 0.5)
    said: list[str] = []
    assert _provide(_config((sys.executable, "-c", program)), 3, said).switches == ()
    [line] = said
    assert line.startswith(f"the topology command {trouble}") and "to see why" in line


def test_a_command_that_cannot_be_run_or_prints_nonsense_is_refused() -> None:
    with pytest.raises(DeadlineError, match="no-such-program cannot be run"):
        _provide(_config(("no-such-program",)), 3, [])
    with pytest.raises(ConfigError, match="the output of `topology` is not TOML"):
        _provide(_config(_print("{}")), 3, [])
