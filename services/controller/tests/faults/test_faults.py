"""Every fault that ``headway inject`` knows is struck for real, and undone."""

from __future__ import annotations

import os
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.common.node.arena import Arena
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import RunDir
from headway.common.node.testing import wait_until
from headway.common.wire.messages.executor import Inject
from headway.controller.faults import cgroups, faults
from headway.controller.faults import fault_effects as effects
from headway.controller.faults.faults import FAULTS, Parts, Places, check, chosen, hold, inject
from headway.testkit.freezing import wait_frozen

COUNTING = "import time\nwhile True:\n print(sum(range(20000)), flush=True)\n time.sleep(0.005)"
FORKING = """
import os, sys
for line in sys.stdin:
    try:
        pid = os.fork()
    except OSError as error:
        print(error.errno, flush=True)
        continue
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    print(0, flush=True)
"""
ASKED_TO_END = """
import contextlib, os, signal, sys, time
from headway.controller.faults import faults

def ask():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)

class Last:
    def __del__(self):
        ask()

@contextlib.contextmanager
def effect(*_):
    try:
        yield Last if sys.argv[1] == "destructor" else lambda: None
    finally:
        ask()
        print("undone", flush=True)

faults.effect = effect
faults.main(["freeze", "60" if sys.argv[1] == "destructor" else "0.1", "."])
"""
Start = Callable[[str], tuple[ProcessId, subprocess.Popen[str]]]


def needs(controller: str) -> None:
    if cgroups.root(controller) is None:
        pytest.skip(f"no control group with {controller} can be made here")


@pytest.fixture
def start() -> Iterator[Start]:
    children: list[subprocess.Popen[str]] = []

    def make(code: str) -> tuple[ProcessId, subprocess.Popen[str]]:
        child = subprocess.Popen(
            [sys.executable, "-c", f"print('up', flush=True)\n{code}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        found = ProcessId.of(child.pid)
        assert found is not None
        return found, child

    yield make
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def places(tmp_path: Path) -> Places:
    run = RunDir.create(tmp_path / "run", run_id="00c0ffee")
    (tmp_path / "n0").mkdir()
    return Places(run.path, tmp_path / "n0", tmp_path / "cluster")


def cpu_ticks(process: ProcessId) -> int:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def ended(process: ProcessId) -> Callable[[], bool]:
    return lambda: not process.alive()


# ---- what can be done to what -------------------------------------------------------------------
def test_an_unknown_fault_is_refused_with_the_list() -> None:
    with pytest.raises(InputError, match="unknown fault 'burn'") as error:
        check("burn", "worker")
    assert all(name in str(error.value.remedy) for name in FAULTS)


@pytest.mark.parametrize(
    ("fault", "target"),
    [("full_disk", "worker"), ("spawn_failure", "dataloader"), ("damaged_arena_header", "node")],
)
def test_a_fault_is_not_done_to_what_it_is_not_for(fault: str, target: str) -> None:
    with pytest.raises(InputError, match="cannot be done"):
        check(fault, target)


def test_a_node_that_is_silent_is_its_executor_and_agent_but_not_its_ranks() -> None:
    who = {
        name: ProcessId(number, 1) for number, name in enumerate(("executor", "agent", "zygote"))
    }
    parts = Parts(who, {0: ProcessId(7, 1)}, [ProcessId(8, 1)])
    assert chosen("silent_node", "node", -1, parts) == [who["executor"], who["agent"]]
    assert chosen("spawn_failure", "node", -1, parts) == [who["executor"], who["zygote"]]
    assert set(chosen("returning_node", "node", -1, parts)) == {
        *who.values(),
        ProcessId(7, 1),
        ProcessId(8, 1),
    }
    assert chosen("kill", "worker", 0, parts) == [ProcessId(7, 1)]
    for target, rank in (("worker", 1), ("dataloader", -1)):
        with pytest.raises(InputError, match="this node does not run"):
            chosen("kill", target, rank, parts)


def test_only_what_the_node_runs_can_be_broken() -> None:
    assert check("kill", "executor", {"agent"}) is FAULTS["kill"]
    with pytest.raises(InputError, match="does not run 'monitor'") as error:
        check("kill", "monitor", {"agent"})
    assert check("kill", "init", {"agent"}) is FAULTS["kill"]
    assert "agent, executor, init, worker" in str(error.value.remedy)


def test_an_executor_does_what_the_driver_ordered(start: Start, places: Places) -> None:
    victim, child = start(COUNTING)
    parts = Parts({"executor": ProcessId.current()}, {3: victim})
    order = Inject(epoch=1, target="worker", fault="kill", rank=3)
    assert str(victim.pid) in faults.carry_out(order, parts, places)
    assert child.wait(10) == -signal.SIGKILL


# ---- processes ----------------------------------------------------------------------------------
def test_stop_and_kill_reach_the_process(start: Start, places: Places) -> None:
    victim, child = start(COUNTING)
    assert str(child.pid) in inject("stop", [victim], places)
    wait_until(lambda: victim.state() == "T", what="it is stopped")
    inject("kill", [victim], places)
    assert child.wait(10) == -signal.SIGKILL


def test_a_frozen_process_does_not_run_is_not_stopped_and_runs_again(
    start: Start, places: Places
) -> None:
    needs("freezer")
    victim, _ = start(COUNTING)
    holder = hold("freeze", [victim], places, 600)
    assert wait_frozen(victim)
    before = cpu_ticks(victim)
    time.sleep(0.2)
    assert cpu_ticks(victim) == before
    assert victim.state() not in "TXZ"
    holder.kill(signal.SIGTERM)  # it ends the fault early
    wait_until(ended(holder), what="the holder has ended")
    wait_until(lambda: cpu_ticks(victim) > before, what="the process runs again")
    assert cgroups.groups() == []


def test_the_fault_ends_by_itself_and_when_its_process_does(start: Start, places: Places) -> None:
    needs("freezer")
    victim, _ = start(COUNTING)
    first = hold("freeze", [victim], places, 0.2)
    wait_until(ended(first), what="its time is over")
    other, child = start(COUNTING)
    second = hold("slow_disk", [other], places, 600)
    assert wait_frozen(other)
    child.kill()
    wait_until(ended(second), what="the holder without a process has ended")
    assert cgroups.groups() == []


def test_what_a_killed_holder_left_frozen_is_thawed_by_the_next_one(
    start: Start, places: Places
) -> None:
    needs("freezer")
    victim, _ = start(COUNTING)
    holder = hold("freeze", [victim], places, 600)
    assert wait_frozen(victim)
    holder.kill()
    wait_until(ended(holder), what="the holder is dead")
    before = cpu_ticks(victim)
    assert len(cgroups.groups(abandoned=True)) == 1
    assert len(cgroups.undo_abandoned()) == 1
    wait_until(lambda: cpu_ticks(victim) > before, what="the process runs again")
    assert cgroups.groups() == []


@pytest.mark.parametrize("fault", ["slow", "slow_disk"])
def test_a_slow_process_runs_now_and_then(start: Start, fault: str, tmp_path: Path) -> None:
    needs("freezer")
    check(fault, "worker")
    victim, child = start(COUNTING)
    assert child.stdout is not None
    with faults.effect(fault, [victim], RunDir(tmp_path)) as tick:
        begun = time.monotonic()
        while time.monotonic() - begun < 2 * (effects.SLOW_RUNS_S + effects.SLOW_WAITS_S):
            tick()
    child.kill()
    assert child.stdout.readlines()
    assert cgroups.groups() == []


def test_a_node_that_cannot_spawn_gets_eagain_from_fork(start: Start) -> None:
    needs("pids")
    victim, child = start(FORKING)
    assert child.stdin is not None
    assert child.stdout is not None

    def fork() -> str:
        child.stdin.write("\n")  # type: ignore[union-attr]
        child.stdin.flush()  # type: ignore[union-attr]
        return child.stdout.readline().strip()  # type: ignore[union-attr]

    assert fork() == "0"
    with effects.unable_to_spawn([victim]):
        assert fork() == "11"
    assert fork() == "0"


def test_a_debugger_holds_a_process_and_lets_go_of_it(start: Start) -> None:
    victim, _ = start(COUNTING)
    with effects.traced([victim]):
        text = Path(f"/proc/{victim.pid}/stat").read_text()
        assert text.rpartition(") ")[2][0] == "t"
    before = cpu_ticks(victim)
    wait_until(lambda: cpu_ticks(victim) > before, what="the process runs again")


# ---- files --------------------------------------------------------------------------------------
@pytest.fixture
def small_disk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hw-disk-"))
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


def test_a_full_disk_has_no_room_until_the_fault_ends(small_disk: Path) -> None:
    kept = small_disk / "kept"
    kept.write_bytes(b"x" * 100_000)
    with effects.filled(small_disk) as tick:
        with pytest.raises(OSError, match="No space"):
            (small_disk / "new").write_bytes(b"x" * 5000)
        kept.unlink()
        tick()  # what others free is taken too
        with pytest.raises(OSError, match="No space"):
            (small_disk / "other").write_bytes(b"x" * 50_000)
    (small_disk / "later").write_bytes(b"x" * 50_000)
    assert {path.name for path in small_disk.iterdir()} <= {"new", "other", "later"}


def test_the_machines_own_disk_is_never_filled(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "MOST_FILLED_BYTES", 1 << 20)
    with pytest.raises(InputError, match="too much to fill"):
        inject("full_disk", [], places)
    with pytest.raises(InputError, match="too much to fill"), effects.filled(places.run_dir):
        pass


def test_a_locked_journal_refuses_writes_for_that_long(places: Places) -> None:
    database = RunDir(places.run_dir).database
    with sqlite3.connect(database, timeout=0.0) as journal:
        journal.execute("PRAGMA journal_mode=WAL")
        journal.execute("CREATE TABLE t (x)")
        journal.commit()
        holder = hold("locked_journal", [], places, 600)

        def is_locked() -> bool:
            try:
                journal.execute("INSERT INTO t VALUES (1)")
            except sqlite3.OperationalError as error:
                return "locked" in str(error)
            journal.commit()
            return False

        wait_until(is_locked, what="the journal is locked")
        holder.kill()  # even then: the kernel lets go of the lock
        wait_until(lambda: not is_locked(), what="the journal can be written")
    journal.close()


# ---- memory -------------------------------------------------------------------------------------
def sealed_arena(folder: Path) -> Path:
    path = folder / "arena-3.bin"
    with Arena.create(path, run_id="00c0ffee", rank=3, slot_bytes=9000, layout=b"x") as arena:
        for step in (4, 5):
            slot = arena.begin(step, 0)
            slot.data[:] = step
            arena.seal(slot)
            arena.commit(step)
    return path


def test_a_damaged_header_is_no_arena_any_more(places: Places) -> None:
    path = sealed_arena(places.shm_dir)
    assert str(path) in inject("damaged_arena_header", [], places, rank=3)
    with pytest.raises(CorruptError):
        Arena.open(path)


def test_exactly_one_bit_of_each_snapshot_is_flipped(places: Places) -> None:
    path = sealed_arena(places.shm_dir)
    before = path.read_bytes()
    assert "[4, 5]" in inject("flipped_snapshot_bit", [], places, rank=3)
    after = path.read_bytes()
    changed = [a ^ b for a, b in zip(before, after, strict=True) if a != b]
    assert [bin(bits).count("1") for bits in changed] == [1, 1]


def test_an_arena_without_a_snapshot_cannot_have_one_flipped(places: Places) -> None:
    path = places.shm_dir / "arena-0.bin"
    Arena.create(path, run_id="00c0ffee", rank=0, slot_bytes=100, layout=b"x").close()
    with pytest.raises(HeadwayError, match="holds no snapshot"):
        inject("flipped_snapshot_bit", [], places, rank=0)


# ---- the clock ----------------------------------------------------------------------------------
def test_only_a_run_with_a_clock_of_its_own_gets_another_time(
    start: Start, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, _ = start(COUNTING)
    with pytest.raises(InputError, match="the machine's clock"):
        inject("clock_step", [victim], places)
    file = places.shm_dir / "clock"
    file.write_bytes(struct.pack("=q", 10**9))
    monkeypatch.setenv(effects.CLOCK_ENV, str(file))
    victim, _ = start(COUNTING)
    assert "-120 s" in inject("clock_step", [victim], places)
    assert struct.unpack("=q", file.read_bytes()) == (-119 * 10**9,)


def test_a_holder_is_no_process_of_the_run(
    start: Start, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("freezer")
    monkeypatch.setenv("HEADWAY_RUN_ID", "00c0ffee")
    victim, _ = start(COUNTING)
    holder = hold("freeze", [victim], places, 600)
    assert wait_frozen(victim)
    words = Path(f"/proc/{holder.pid}/environ").read_bytes().split(b"\0")
    assert b"HEADWAY_FAULT=00c0ffee" in words
    assert not [word for word in words if word.startswith(b"HEADWAY_RUN_ID")]
    holder.kill(signal.SIGTERM)
    wait_until(ended(holder), what="the holder has ended")
    assert os.waitpid(holder.pid, 0)[1] == 0
    assert faults.ENV_FAULT not in os.environ


@pytest.mark.parametrize("moment", ["destructor", "undoing"])
def test_a_fault_is_undone_whenever_its_holder_is_asked_to_end(moment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKED_TO_END, moment],
        capture_output=True,
        text=True,
        timeout=40.0,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "undone\n"), done.stderr
