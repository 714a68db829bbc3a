"""Compilers on machines: each that may carry ranks is judged, and not the one that submits."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError
from headway.common.node.run_dir import RunDir
from headway.console.folder.claim import keep_config
from headway.console.lifecycle import launch, machines
from headway.console.run import Run
from headway.console.testing import SMALL, touch_corpus
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.ssh.config import Host, HostsConfig
from headway.trainer.config import RunConfig

NAMED = '#!/bin/sh\nMACHINE=$1\nexport MACHINE\nshift\nexec "$@"\n'
"""Runs its words on this machine, which has the name of another one."""


@pytest.fixture
def hosts(own_roots: Path) -> HostsConfig:
    """Three machines, each of which is this one; tests choose their Python."""
    reach = own_roots / "reach"
    reach.write_text(NAMED)
    reach.chmod(0o700)
    three = (Host("a"), Host("b"), Host("c"))
    return HostsConfig(
        str(own_roots / "shared"), three, python=sys.executable, reach=(str(reach), "{name}")
    )


def _config(corpus: Path) -> RunConfig:
    launch = dataclasses.replace(SMALL.launch, nodes=2, ranks_per_node=1, interface="127.0.0.0/8")
    data = dataclasses.replace(SMALL.data, path=str(corpus))
    return dataclasses.replace(SMALL, data=data, launch=launch)


def _host_with_compiler(path: Path, lacking: str) -> None:
    """A Python that describes the machine in ``MACHINE``: it has a GPU, and a compiler or not."""
    path.write_text(f"""\
#!/bin/sh
lack=""
[ "$MACHINE" = "{lacking}" ] && lack="a C compiler (gcc or clang) is missing"
echo '{{"gpus": 1, "cpu_flags": "", "compiler_lack": "'"$lack"'"}}'
""")
    path.chmod(0o700)


def test_a_compiler_is_looked_for_on_each_machine_of_the_run_and_not_here(
    own_roots: Path, hosts: HostsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that fuse kernels and ranks that do not would compute other bits."""
    answer = own_roots / "python"
    hosts = dataclasses.replace(hosts, python=str(answer))
    monkeypatch.setenv("CC", "absent-compiler")
    train = dataclasses.replace(SMALL.train, device="auto", compile="auto")
    config = dataclasses.replace(_config(own_roots), train=train)
    for lacking, compiles in (("nobody", True), ("b", False), ("c", True)):
        _host_with_compiler(answer, lacking)
        resolved, line = machines.resolve_on_machines(config, hosts)
        assert resolved.train.compile is compiles, f"two nodes, {lacking} lacks a compiler"
        assert ("no, a C compiler (gcc or clang) is missing on b" in line) is not compiles
    _host_with_compiler(answer, "c")
    spare = dataclasses.replace(config.launch, spares=1)
    resolved, _ = machines.resolve_on_machines(dataclasses.replace(config, launch=spare), hosts)
    assert resolved.train.compile is False, "a spare may carry ranks later"
    asked = dataclasses.replace(train, compile=True)
    resolved, _ = machines.resolve_on_machines(dataclasses.replace(config, train=asked), hosts)
    assert resolved.train.compile is True, "each machine checks it when it joins"


def test_a_machine_that_cannot_compile_is_named_when_a_run_that_compiles_starts(
    own_roots: Path, hosts: HostsConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "absent-compiler")
    train = dataclasses.replace(SMALL.train, compile=True)
    touch_corpus(own_roots / "corpus")
    folder = RunDir.create(own_roots / "runs" / "new", run_id="abcd1234")
    run, cluster = Run(folder.path), ClusterFolder.create(own_roots / "cluster", nodes=2)
    keep_config(run, dataclasses.replace(_config(own_roots / "corpus"), train=train))
    with pytest.raises(HeadwayError, match=r"a: .*the C\+\+ compiler absent-compiler is missing"):
        launch.start_on_machines(run, cluster, hosts, print)
    assert list((own_roots / "shared").iterdir()) == []
