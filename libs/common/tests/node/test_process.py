from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
from pathlib import Path

import pytest
from headway.common.errors import CorruptError, InputError
from headway.common.node.exit_record import ExitRecord
from headway.common.node.process import GONE, ProcessId, spawn
from headway.common.node.testing import (
    child_environment,
    identity,
    no_leaks,
    open_fds,
    python_child,
    read_line,
    send_line,
    wait_until,
)

SLEEP = "import signal; print('up', flush=True); signal.pause()"


def reap(process: ProcessId) -> int:
    """Exit code of a child made by ``spawn``."""
    return os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])


def test_a_running_a_stopped_and_a_dead_process_are_told_apart() -> None:
    with python_child(SLEEP) as child:
        assert read_line(child) == "up"
        process = identity(child)
        wait_until(lambda: process.state() == "S", what="sleep")
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: process.state() == "T", what="stop")
        assert process.alive()
        assert process.kill()
        wait_until(lambda: process.state() == "Z", what="zombie")
        assert not process.alive()
        child.wait()
        assert process.state() == GONE
        assert not process.alive()
        assert ProcessId.of(process.pid) != process


def test_a_process_with_the_same_pid_but_another_start_is_somebody_else() -> None:
    with python_child(SLEEP) as child:
        assert read_line(child) == "up"
        real = identity(child)
        old = ProcessId(real.pid, real.start_ticks - 1)
        fds = open_fds()
        assert not old.alive()
        assert not old.kill()
        with pytest.raises(ProcessLookupError):
            old.pidfd()
        assert open_fds() == fds
        assert real.alive()


def test_no_process_is_meant_by_pid_zero() -> None:
    assert not ProcessId(0, 0).alive()
    assert not ProcessId(0, 0).kill()


def test_the_start_time_is_found_behind_a_hostile_program_name(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = spawn([program, "60"], tmp_path / "log", dict(os.environ))
    wait_until(lambda: process.state() == "S", what="sleep")
    assert abs(process.start_ticks - ProcessId.current().start_ticks) < 10_000_000
    assert process.kill()
    assert reap(process) == -signal.SIGKILL


def test_a_pidfd_of_a_process_that_is_no_child_becomes_readable_at_its_end(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from headway.common.node.process import spawn
command = [sys.executable, "-c", "import signal; signal.pause()"]
child = spawn(command, Path(sys.argv[1]), dict(os.environ))
print(child.pid, child.start_ticks, flush=True)
sys.stdin.readline()
"""
    with python_child(code, tmp_path / "log") as parent:
        stranger = ProcessId(*map(int, read_line(parent).split()))
        fd = stranger.pidfd()
        try:
            assert select.select([fd], [], [], 0)[0] == []
            assert stranger.kill()
            assert select.select([fd], [], [], 20)[0] == [fd]
        finally:
            os.close(fd)


PROBE = """
import json, os, sys
print(json.dumps({
    "sid": os.getsid(0), "pid": os.getpid(), "cwd": os.getcwd(), "env": dict(os.environ),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    "stdin": os.readlink("/proc/self/fd/0"),
    "umask": os.umask(0),
    "stdout": os.readlink("/proc/self/fd/1"), "flags": open("/proc/self/fdinfo/1").read(),
}), flush=True)
print("to stderr", file=sys.stderr)
"""


def test_a_spawned_process_has_its_own_session_its_log_its_environment_and_nothing_else(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    log.write_text("earlier\n")
    leaky = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaky, True)
    os.environ["HEADWAY_TEST_LEAK"] = "1"
    try:
        before = open_fds()
        process = spawn(
            [sys.executable, "-c", PROBE], log, {"ONLY": "this", "LC_ALL": "C.UTF-8"}, cwd=tmp_path
        )
        assert open_fds() == before
    finally:
        os.close(leaky)
        del os.environ["HEADWAY_TEST_LEAK"]
    assert reap(process) == 0
    earlier, report, last = log.read_text().splitlines()
    assert (earlier, last) == ("earlier", "to stderr")
    seen = json.loads(report)
    assert seen["sid"] == seen["pid"] == process.pid
    assert seen["cwd"] == str(tmp_path)
    assert seen["env"] == {"ONLY": "this", "LC_ALL": "C.UTF-8"}
    assert seen["umask"] == 0o077
    # the fourth is the listing itself
    assert seen["fds"][:3] == [0, 1, 2] and len(seen["fds"]) == 4
    assert (seen["stdin"], seen["stdout"]) == ("/dev/null", str(log))
    flags = int(seen["flags"].split("flags:")[1].split()[0], 8)
    assert flags & os.O_APPEND


def test_a_program_or_log_that_does_not_exist_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no-such-program"):
        spawn([tmp_path / "no-such-program"], tmp_path / "log", {})
    with pytest.raises(InputError, match="nowhere"):
        spawn([sys.executable], tmp_path / "nowhere" / "log", {})


def test_a_spawned_process_outlives_its_parent_and_keeps_logging(tmp_path: Path) -> None:
    parent_code = """
import os, sys
from pathlib import Path
from headway.common.node.process import spawn
code = "import time\\nwhile True: print('tick', flush=True); time.sleep(0.01)"
child = spawn([sys.executable, "-c", code], Path(sys.argv[1]), dict(os.environ))
print(child.pid, child.start_ticks, flush=True)
sys.stdin.readline()
"""
    log = tmp_path / "log"
    with python_child(parent_code, log) as parent:
        child = ProcessId(*map(int, read_line(parent).split()))
        parent.kill()
        parent.wait()
    try:
        size = log.stat().st_size
        wait_until(lambda: log.stat().st_size > size + 50, what="more ticks")
        assert child.alive()
    finally:
        assert child.kill()


def test_ended_children_stay_until_they_are_reaped_and_running_ones_are_left_alone(
    tmp_path: Path,
) -> None:
    """In a process of its own: every child of its process is let go of."""
    code = """
import os, sys, time
from pathlib import Path
from headway.common.node.process import reap_children, spawn
reap_children()  # without any child
log, env = Path(sys.argv[1]), dict(os.environ)
ended = [spawn([sys.executable, "-c", f"raise SystemExit({code})"], log, env) for code in (0, 3)]
stays = spawn([sys.executable, "-c", "import time; time.sleep(60)"], log, env)
deadline = time.monotonic() + 20
while any(p.alive() for p in ended) and time.monotonic() < deadline:
    time.sleep(0.01)
assert [p.state() for p in ended] == ["Z", "Z"]
reap_children()
assert [p.state() for p in ended] == ["X", "X"] and stays.alive()
stays.kill()
print("good", flush=True)
"""
    with python_child(code, tmp_path / "log") as child:
        assert read_line(child) == "good"


def test_last_words_name_the_process_the_code_and_the_culprit(tidy_shm: Path) -> None:
    path = tidy_shm / "words-0.bin"
    assert ExitRecord(path).read() is None
    words = ExitRecord(path)
    words.prepare()
    assert ExitRecord(path).read() is None
    words.write(70, "loss is NaN at step 12", "rank 3: Ünïcode\nTraceback ...")
    found = ExitRecord(path).read()
    assert found is not None
    assert found.process == ProcessId.current()
    assert (found.code, found.reason) == (70, "loss is NaN at step 12")
    assert found.culprit == "rank 3: Ünïcode\nTraceback ..."
    assert found.at_ns > 0
    words.close()
    path.unlink()


def test_last_words_survive_the_process_and_are_emptied_by_its_successor(shm: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from headway.common.node.exit_record import ExitRecord
words = ExitRecord(Path(sys.argv[1]))
words.prepare()
print("ready", flush=True)
if sys.stdin.readline() == "speak\\n":
    words.write(3, "orphaned", "executor")
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = shm / "words-0.bin"
    with python_child(code, path) as child:
        assert read_line(child) == "ready"
        send_line(child, "speak")
        assert child.wait() == -9
        found = ExitRecord(path).read()
        assert found is not None and (found.pid, found.code, found.reason) == (
            child.pid,
            3,
            "orphaned",
        )
    with python_child(code, path) as child:
        assert read_line(child) == "ready"
        send_line(child, "die silently")
        assert child.wait() == -9
    assert ExitRecord(path).read() is None


@pytest.mark.parametrize(
    "culprit", ["x" * 100_000, "\x01" * 100_000, "\U0001f600" * 100_000, "\ud800"]
)
def test_long_or_odd_last_words_are_cut_but_readable(shm: Path, culprit: str) -> None:
    words = ExitRecord(shm / "w")
    words.write(1, "r" * 5000, culprit)
    found = words.read()
    assert found is not None
    assert found.reason == "r" * 1000
    assert found.code == 1
    assert len(found.culprit) <= 2400
    words.close()


def test_a_garbled_record_is_called_corrupt(shm: Path) -> None:
    words = ExitRecord(shm / "w")
    words.write(1, "reason")
    data = (shm / "w").read_bytes()
    (shm / "w").write_bytes(data[:128] + b"\xff" * 20 + data[148:])
    with pytest.raises(CorruptError):
        ExitRecord(shm / "w").read()


def test_reading_last_words_leaves_nothing_open(shm: Path) -> None:
    ExitRecord(shm / "w").write(0, "fine")
    with no_leaks(shm):
        for _ in range(5):
            ExitRecord(shm / "w").read()


def test_child_environment_lets_children_find_the_package() -> None:
    with python_child(
        "import headway.common.node.process as p; print(p.GONE)", env=child_environment()
    ) as child:
        assert read_line(child) == GONE
