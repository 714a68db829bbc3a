"""Nodes differ in what machines differ in, and lose what machines lose."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError
from headway.common.node.process import ProcessId
from headway.common.node.testing import child_environment, wait_until
from headway.testkit.bed import Bed, CannotError
from headway.testkit.bed.node import HAS_CLOCKS
from headway.testkit.bed.probe import missing

NUM_NODES = 5
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def shell(bed: Bed, index: int, command: str) -> str:
    return bed.node(index).run(["sh", "-c", command]).stdout.strip()


@pytest.mark.parametrize(
    "question", ["hostname", f"cat {BOOT_ID}", "cat /etc/machine-id", "cat /etc/hostname"]
)
def test_every_node_is_another_machine(bed: Bed, question: str) -> None:
    answers = [shell(bed, index, question) for index in range(NUM_NODES)]
    here = subprocess.run(["sh", "-c", question], capture_output=True, text=True, check=True)
    assert len({*answers, here.stdout.strip()}) == NUM_NODES + 1


def test_a_node_knows_what_it_is(bed: Bed) -> None:
    node = bed.node(3)
    assert shell(bed, 3, "hostname") == node.name == "node-3"
    assert shell(bed, 3, f"cat {BOOT_ID}") == node.boot_id
    assert shell(bed, 3, "cat /etc/machine-id") == node.machine_id
    code = "import socket; print(socket.gethostbyname('node-3'), socket.gethostbyname('node-1'))"
    resolved = node.run([sys.executable, "-S", "-c", code]).stdout.split()
    assert resolved == [node.address, bed.node(1).address]


@pytest.mark.parametrize("folder", ["/dev/shm", "/tmp", "/var/tmp", "/run"])
def test_temporary_files_are_of_one_node_and_one_boot(bed: Bed, folder: str) -> None:
    shell(bed, 0, f"echo mine > {folder}/mark")
    assert shell(bed, 1, f"ls {folder}/mark || true") == ""
    assert not Path(folder, "mark").exists()
    bed.node(0).kill()
    bed.node(0).boot()
    assert shell(bed, 0, f"ls {folder}/mark || true") == ""


def test_the_disk_is_of_one_node_and_outlives_a_boot(bed: Bed) -> None:
    node = bed.node(0)
    assert shell(bed, 0, "pwd; echo $TMPDIR").split() == [f"{bed.disk}/home", f"{bed.disk}/tmp"]
    shell(bed, 0, "echo mine > ~/mark")
    assert (node.root / "home" / "mark").read_text() == "mine\n"
    node.kill()
    node.boot()
    assert shell(bed, 0, f"cat ~/mark {node.root}/home/mark") == "mine\nmine"
    assert shell(bed, 1, f"ls ~/mark {node.root} 2>/dev/null || true") == ""


def test_all_nodes_share_the_shared_folder_and_nothing_else(bed: Bed, shared: Path) -> None:
    shell(bed, 0, f"echo ours > {shared}/mark")
    assert shell(bed, 1, f"cat {shared}/mark") == (shared / "mark").read_text().strip() == "ours"
    for folder in (Path.cwd(), Path.home(), Path("/usr")):
        with pytest.raises(HeadwayError, match="Read-only"):
            shell(bed, 0, f"touch {shlex.quote(str(folder))}/mark")


def test_the_code_of_the_project_runs_on_a_node(bed: Bed) -> None:
    code = "import headway.testkit.bed as bed; print(bed.__file__)"
    found = bed.node(2).run([sys.executable, "-c", code], cwd=Path.cwd()).stdout.strip()
    assert found == sys.modules["headway.testkit.bed"].__file__


def test_processes_see_only_those_of_their_node(bed: Bed) -> None:
    sleeper = bed.node(0).start(["sleep", "1000"])
    assert shell(bed, 0, "cat /proc/1/comm") == shell(bed, 1, "cat /proc/1/comm")
    assert "sleep 1000" in shell(bed, 0, "ps ax -o args")
    assert "sleep 1000" not in shell(bed, 1, "ps ax -o args")
    assert Path(f"/proc/{sleeper.pid}/comm").read_text() == "sleep\n", "the pid is the host's"
    sleeper.kill()
    assert sleeper.wait(10) == -signal.SIGKILL


def test_exit_codes_output_and_failures_reach_the_host(bed: Bed, tmp_path: Path) -> None:
    node = bed.node(0)
    log = tmp_path / "log"
    code = node.start(["sh", "-c", "echo $WORD; echo err >&2; exit 3"], env={"WORD": "a"}, log=log)
    assert (code.wait(10), code.returncode, log.read_text()) == (3, 3, "a\nerr\n")
    assert node.run(["cat"], stdin="typed").stdout == "typed"
    assert node.run(["sh", "-c", "exit 4"], check=False).returncode == 4
    with pytest.raises(HeadwayError, match="code 5\nsaid"):
        node.run(["sh", "-c", "echo said; exit 5"])
    with pytest.raises(HeadwayError, match="no-such-program was not started: FileNotFound"):
        node.start(["no-such-program"])
    with pytest.raises(subprocess.TimeoutExpired):
        node.run(["sleep", "1000"], timeout_s=0.05)
    assert node.processes() == []


def test_process_1_reaps_orphans(bed: Bed) -> None:
    node = bed.node(0)
    node.run(["sh", "-c", "for i in 1 2 3; do (sleep 0.0$i &) ; done"])
    wait_until(lambda: node.processes() == [], what="no zombies")


def test_commands_do_not_reach_a_node_that_is_still_starting(bed: Bed) -> None:
    """Their answers would be taken for the first process's own."""
    node = bed.node(4)
    node.kill()
    ended, ran = threading.Event(), []

    def knock() -> None:
        while not ended.is_set():
            with contextlib.suppress(ValueError):
                ran.append(node.run(["true"], check=False).returncode)

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        node.power_on()
        with pytest.raises(ValueError, match="node-4 is down, or still starting"):
            node.start(["true"])
        assert node.has_power and not node.is_up
        node.finish_boot()
        wait_until(lambda: ran, what="a command after the boot")
    finally:
        ended.set()
        thread.join()
    assert set(ran) == {0} and node.boot_id


def test_power_loss_ends_everything_and_a_boot_begins_anew(bed: Bed) -> None:
    node = bed.node(4)
    sleeper = node.start(["sh", "-c", "trap '' TERM; sleep 1000 & setsid sleep 1000 & wait"])
    wait_until(lambda: len(node.processes()) == 3, what="three processes")
    everything, boot_id, machine_id = node.processes(), node.boot_id, node.machine_id
    node.kill()
    assert not any(one.alive() for one in everything)
    assert sleeper.wait(0) == -signal.SIGKILL
    assert not node.is_up
    with pytest.raises(ValueError, match="node-4 is down"):
        node.run(["true"])
    node.boot()
    assert shell(bed, 4, "cat /etc/machine-id") == machine_id
    assert shell(bed, 4, f"cat {BOOT_ID}") == node.boot_id != boot_id
    with pytest.raises(ValueError, match="node-4 is up"):
        node.boot()


def test_a_node_falls_with_the_process_that_holds_it(bed: Bed) -> None:
    node = bed.node(4)
    first = ProcessId.of(node.pid)
    parent = re.search(r"(?m)^PPid:\s+(\d+)", Path(f"/proc/{node.pid}/status").read_text())
    assert first and parent
    os.kill(int(parent[1]), signal.SIGKILL)
    wait_until(lambda: not first.alive(), what="the end of process 1")
    node.kill()
    node.boot()
    assert shell(bed, 4, "echo up") == "up"


def test_a_node_has_network_devices_of_its_own(bed: Bed) -> None:
    assert shell(bed, 0, "ls /sys/class/net").split() == ["eth0", "lo"]


@pytest.mark.skipif(not HAS_CLOCKS, reason="the kernel has no time namespaces")
def test_clocks_of_nodes_differ_and_can_be_set(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time; print(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))"

    def clocks(index: int) -> list[float]:
        out = bed.node(index).run([sys.executable, "-S", "-c", code]).stdout
        return [float(word) for word in out.split()]

    assert clocks(1)[0] > clocks(0)[0] + 500, "an hour of a test is not 500 s"
    assert clocks(0)[0] == pytest.approx(clocks(0)[1], abs=60)
    node = bed.node(0)
    node.kill()
    node.set_clock(1e6)
    node.boot()
    assert clocks(0)[0] == pytest.approx(time.monotonic() + 1e6, abs=60)
    with pytest.raises(ValueError, match="negative"):
        node.set_clock(-1e9)
    monkeypatch.setattr("headway.testkit.bed.node.HAS_CLOCKS", False)
    with pytest.raises(CannotError, match="time namespaces"):
        node.set_clock(1)


def test_beds_have_at_least_one_node(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nodes=0"):
        Bed(tmp_path, nodes=0)


def test_folders_to_write_may_lie_in_a_visible_one(tmp_path: Path) -> None:
    """As in a clone below /tmp: its files are only read, but for its ``runs``."""
    shared, disks = tmp_path / "clone/runs/shared", tmp_path / "clone/runs/disks"
    for folder in (shared, disks):
        folder.mkdir(parents=True)
    (tmp_path / "clone/Makefile").write_text("all:")
    with Bed(disks, nodes=1, shared=[shared], visible=[tmp_path / "clone"]) as bed:
        shell(bed, 0, f"echo 1 > {shared}/one; echo 2 > {bed.disk}/two; cat {tmp_path}/clone/*file")
        with pytest.raises(HeadwayError, match="Read-only"):
            shell(bed, 0, f"touch {tmp_path}/clone/new")
    assert (shared / "one").exists() and (disks / "node-0/two").exists()


def test_a_node_that_cannot_start_says_why_and_nothing_is_left(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    bed = Bed(tmp_path, nodes=2, shared=[gone])
    with pytest.raises(HeadwayError, match=r"did not start: .*open_tree .*gone: No such file"), bed:
        pass
    assert not any(node.is_up for node in bed.nodes)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Bed.missing() == ""
    missing.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    assert Bed.missing() == "`ip` is not installed (Debian: apt-get install iproute2)"
    missing.cache_clear()
    monkeypatch.setattr("headway.testkit.bed.probe.os.geteuid", lambda: 1000)
    assert "need root" in Bed.missing()
    missing.cache_clear()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nodes_by_hand_run_until_a_signal(number: int) -> None:
    """With SIGINT ignored at its start, as a shell starts what it puts in the background."""
    bed = [sys.executable, "-m", "headway.testkit.bed", "--nodes", "2"]
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *bed]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=child_environment()
    ) as child:
        try:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(3)]
            child.send_signal(number)
            assert child.wait(30) == 0
        finally:
            child.kill()  # or leaving the block waits for it for ever
    node, address, *enter, disk = lines[1].split()
    assert (node, enter[:3]) == ("node-1", ["nsenter", "-a", "-t"])
    assert lines[2] == "press Ctrl-C to end them\n"
    assert address.startswith("10.")
    assert not Path(disk).exists() and not Path("/proc", enter[3]).exists()


def test_a_shell_by_hand_is_on_the_node() -> None:
    command = [sys.executable, "-m", "headway.testkit.bed", "--nodes", "1", "--shell", "0"]
    env = child_environment({"SHELL": "hostname"})
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "node-0"
