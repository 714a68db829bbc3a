"""Beds leave nothing on the host, however they end, and do not see each other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId
from headway.common.node.testing import open_fds, python_child, read_line, wait_until
from headway.testkit.bed import Bed
from headway.testkit.bed.freezer import hierarchies

OWNER = """
import json, sys
from pathlib import Path
from headway.testkit.bed import Bed, freezer
ways = freezer.hierarchies()
freezer.hierarchies = lambda: ways[int(sys.argv[2]) :]
with Bed(Path(sys.argv[1]), nodes=3) as bed:
    for node in bed.nodes:
        node.start(["sh", "-c", "trap '' TERM HUP; sleep 1000 & setsid sleep 1000 & wait"])
        while len(node.processes()) < 3:
            pass
    bed.node(1).freeze()
    others = [one.pid for node in bed.nodes for one in node.processes()]
    print(json.dumps({"first": [node.pid for node in bed.nodes], "others": others}), flush=True)
    sys.stdin.read()
"""
KINDS = ("mnt", "uts", "ipc", "pid", "net", "time")


def on_the_host() -> dict[str, object]:
    """What a bed could change here."""
    return {
        "devices": socket.if_nameindex(),
        "mounts": Path("/proc/self/mounts").read_text(),
        "descriptors": open_fds(),
    }


def groups_of(owner: int) -> list[str]:
    """The cgroups of beds of process ``owner``."""
    roots = [one.root for one in hierarchies()]
    return [path.name for root in roots for path in root.glob(f"headway-bed-*-{owner}-*")]


def link(pid: object, kind: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())


@contextlib.contextmanager
def namespaces(pids: Iterable[int]) -> Iterator[set[str]]:
    """The nodes' own ones. They are held open, without a process: the kernel gives the number of
    one that is gone to the next, which may be that of a test that runs at the same time."""
    names, here = set(), {link("self", kind) for kind in KINDS}
    with contextlib.ExitStack() as held:
        for pid in pids:
            for kind in KINDS:
                if (name := link(pid, kind)) not in here:
                    names.add(name)
                    held.enter_context(Path(f"/proc/{pid}/ns/{kind}").open("rb"))
        yield names


def in_use(names: set[str]) -> set[str]:
    """Those of these namespaces that some process of this machine is in."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for kind in KINDS:
            with contextlib.suppress(OSError):
                found.add(link(pid, kind))
    return names & found


@dataclass
class Owner:
    """A process with a bed of three nodes, of which one is frozen."""

    child: subprocess.Popen[str]
    first: list[ProcessId]
    """Process 1 of each node."""
    others: list[ProcessId]
    namespaces: set[str]

    def is_gone(self) -> bool:
        """Whether nothing of its bed runs."""
        return not any(one.alive() for one in (*self.first, *self.others))


@pytest.fixture(params=range(len(hierarchies()) + 1))
def owner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Owner]:
    """Once for each way to freeze."""
    with python_child(OWNER, tmp_path, request.param) as child:
        pids = json.loads(read_line(child))
        first, others = (identities(pids[key]) for key in ("first", "others"))
        assert (len(first), len(others)) == (3, 9)
        with namespaces(pids["first"]) as inside:
            assert len(inside) >= 3 * 5 and in_use(inside) == inside
            yield Owner(child, first, others, inside)


def identities(pids: list[int]) -> list[ProcessId]:
    return [found for pid in pids if (found := ProcessId.of(pid))]


def test_a_closed_bed_leaves_nothing(tmp_path: Path) -> None:
    before = on_the_host()
    with contextlib.ExitStack() as held:
        with Bed(tmp_path, nodes=3) as bed:
            for node in bed.nodes:
                node.start(["sleep", "1000"])
            inside = held.enter_context(namespaces(node.pid for node in bed.nodes))
            everything = [one for node in bed.nodes for one in node.processes()]
            assert len(everything) == 3
            bed.node(0).freeze()
            bed.node(1).kill()
            bed.cut(0, 2)
            assert on_the_host()["devices"] == before["devices"]
            assert on_the_host()["mounts"] == before["mounts"]
        assert not any(one.alive() for one in everything)
        assert in_use(inside) == set()
    assert groups_of(os.getpid()) == []
    assert on_the_host() == before
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["node-0", "node-1", "node-2"], "only the disks"


def test_a_killed_owner_leaves_nothing(owner: Owner) -> None:
    before = on_the_host()
    owner.child.kill()
    wait_until(owner.is_gone, what="the end of all processes, the frozen ones included")
    wait_until(lambda: not in_use(owner.namespaces), what="the end of the namespaces")
    wait_until(lambda: not groups_of(owner.child.pid), what="the end of its groups")
    assert on_the_host() == before


@pytest.mark.parametrize("owner", range(len(hierarchies())), indirect=True)
def test_the_next_bed_ends_and_removes_what_a_dead_one_has_left(
    owner: Owner, tmp_path: Path
) -> None:
    for one in owner.first:  # they cannot clean up, nor can their owner
        one.kill(signal.SIGSTOP)
    owner.child.kill()
    owner.child.wait()
    for one in owner.first:
        one.kill()
    assert groups_of(owner.child.pid) != []
    (tmp_path / "next").mkdir()
    with Bed(tmp_path / "next", nodes=1):
        assert groups_of(owner.child.pid) == []
        wait_until(owner.is_gone, what="the end of all processes")
    wait_until(lambda: not in_use(owner.namespaces), what="the end of the namespaces")


def test_two_beds_do_not_see_each_other(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with Bed(folders[0], nodes=2) as one, Bed(folders[1], nodes=2) as two:
        addresses = {node.address.rpartition(".")[0] for bed in (one, two) for node in bed.nodes}
        assert len(addresses) == 2, "a subnet each"
        ids = {node.machine_id for bed in (one, two) for node in bed.nodes}
        assert len(ids) == 4
        one.node(0).run(["sh", "-c", "echo one > /dev/shm/mark"])
        assert two.node(0).run(["ls", "/dev/shm"]).stdout == ""
        one.isolate(0)
        one.node(1).kill()
        assert two.node(1).run(["echo", "up"]).stdout == "up\n"
    with pytest.raises(ValueError, match="the bed is closed"):
        two.heal()
