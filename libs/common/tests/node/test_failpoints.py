from __future__ import annotations

import faulthandler
import signal
import threading
import time
from pathlib import Path

import pytest
from headway.common.errors import InputError
from headway.common.node.arming import arm, armed, disarm, fired
from headway.common.node.failpoints import FailpointError, configure, damage_at, failpoint
from headway.common.node.testing import (
    identity,
    no_leaks,
    python_child,
    read_line,
    send_line,
    wait_until,
)

LOOP = """
import os, sys
from pathlib import Path
from headway.common.node.failpoints import FailpointError, add_where, configure, failpoint
configure(Path(sys.argv[1]), node=0)
add_where(rank=int(sys.argv[2]))
print("up", flush=True)
for line in sys.stdin:
    try:
        failpoint("test.here", step=int(line))
        print("passed", flush=True)
    except FailpointError as error:
        print("raised", flush=True)
"""


def test_nothing_happens_unconfigured_unarmed_or_under_another_name(shm: Path) -> None:
    arm(shm / "fp.bin", "a", "raise")
    failpoint("a")
    configure(shm / "fp.bin")
    failpoint("b")
    disarm(shm / "fp.bin")
    failpoint("a")
    assert fired(shm / "fp.bin") == {}


def test_an_armed_failpoint_fires_once_and_says_so(shm: Path) -> None:
    configure(shm / "fp.bin")
    key = arm(shm / "fp.bin", "a", "raise", {"step": 3})
    failpoint("a", step=2)
    failpoint("a")
    with pytest.raises(FailpointError, match="failpoint a fired"):
        failpoint("a", step=3, rank=1)
    failpoint("a", step=3, rank=1)
    assert fired(shm / "fp.bin")[key]["name"] == "a"


def test_damage_is_told_once_to_the_point_that_asks_for_it(shm: Path) -> None:
    configure(shm / "fp.bin", rank=1)
    assert damage_at("a") == ""
    arm(shm / "fp.bin", "a", "damage:nan", {"rank": 1, "step": 3})
    assert [damage_at("a", step=step) for step in (2, 3, 3)] == ["", "nan", ""]
    with pytest.raises(InputError, match="'damage:' is unknown"):
        arm(shm / "fp.bin", "a", "damage:")


def test_a_held_lock_stops_the_other_threads_and_collections_do_not(shm: Path) -> None:
    configure(shm / "fp.bin")
    turns = 0

    def count() -> None:
        nonlocal turns
        while not ended.wait(0.001):
            turns += 1

    ended = threading.Event()
    thread = threading.Thread(target=count)
    thread.start()
    moved = {}
    for how in ("gil", "gc", "sleep"):
        arm(shm / "fp.bin", "a", f"{how}:0.5", key=how)
        before = turns
        failpoint("a")
        moved[how] = turns - before
    ended.set()
    thread.join()
    # a busy machine lets the other thread run a few times before the lock is held
    assert moved["gil"] < moved["gc"]
    assert 10 * moved["gil"] < moved["sleep"]


def test_asking_for_stacks_does_not_release_a_held_lock(shm: Path, tmp_path: Path) -> None:
    configure(shm / "fp.bin")
    with (tmp_path / "stacks").open("w") as file:
        faulthandler.register(signal.SIGALRM, file, all_threads=False)
        try:
            arm(shm / "fp.bin", "a", "gil:0.5")
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            begun_s = time.monotonic()
            failpoint("a")
            assert time.monotonic() - begun_s >= 0.5
        finally:
            faulthandler.unregister(signal.SIGALRM)
    assert "_hold_lock" in (tmp_path / "stacks").read_text()


def test_arming_again_fires_again_only_after_disarming(shm: Path) -> None:
    configure(shm / "fp.bin")
    for _ in range(2):
        arm(shm / "fp.bin", "a", "raise", key="k")
        with pytest.raises(FailpointError):
            failpoint("a")
        arm(shm / "fp.bin", "a", "raise", key="k")
        failpoint("a")
        disarm(shm / "fp.bin", "k")
        assert fired(shm / "fp.bin") == {}
    assert armed(shm / "fp.bin") == []


def test_what_is_armed_later_is_seen_by_a_process_that_has_read_the_file_before(shm: Path) -> None:
    configure(shm / "fp.bin")
    arm(shm / "fp.bin", "a", "raise", {"step": 99})
    failpoint("b")
    arm(shm / "fp.bin", "b", "raise")
    with pytest.raises(FailpointError):
        failpoint("b")


def test_disarming_one_key_leaves_the_others(shm: Path) -> None:
    configure(shm / "fp.bin")
    arm(shm / "fp.bin", "a", "raise", key="one")
    arm(shm / "fp.bin", "b", "raise", key="two")
    disarm(shm / "fp.bin", "one")
    failpoint("a")
    with pytest.raises(FailpointError):
        failpoint("b")


def test_arming_reaches_running_processes_and_one_of_them_dies(shm: Path) -> None:
    path = shm / "fp.bin"
    with python_child(LOOP, path, 0) as zero, python_child(LOOP, path, 1) as one:
        for child in (zero, one):
            assert read_line(child) == "up"
            send_line(child, "5")
            assert read_line(child) == "passed"
        arm(path, "test.here", "kill", {"rank": 1, "step": 6, "node": 0}, key="k")
        send_line(zero, "6")
        assert read_line(zero) == "passed"
        send_line(one, "5")
        assert read_line(one) == "passed"
        send_line(one, "6")
        assert one.wait() == -signal.SIGKILL
        assert fired(path)["k"]["pid"] == one.pid
    with python_child(LOOP, path, 1) as successor:
        assert read_line(successor) == "up"
        send_line(successor, "6")
        assert read_line(successor) == "passed"


def test_of_many_processes_that_reach_it_exactly_one_fires(shm: Path) -> None:
    path = shm / "fp.bin"
    arm(path, "test.here", "raise")
    with (
        python_child(LOOP, path, 0) as a,
        python_child(LOOP, path, 1) as b,
        python_child(LOOP, path, 2) as c,
    ):
        children = (a, b, c)
        for child in children:
            assert read_line(child) == "up"
        for child in children:
            send_line(child, "1")
        assert sorted(read_line(child) for child in children) == ["passed", "passed", "raised"]


def test_stop_freezes_the_process_until_it_is_continued(shm: Path) -> None:
    path = shm / "fp.bin"
    arm(path, "test.here", "stop")
    with python_child(LOOP, path, 0) as child:
        assert read_line(child) == "up"
        send_line(child, "1")
        wait_until(lambda: identity(child).state() == "T", what="stop")
        child.send_signal(signal.SIGCONT)
        assert read_line(child) == "passed"


def test_sleep_delays_and_goes_on(shm: Path) -> None:
    configure(shm / "fp.bin")
    arm(shm / "fp.bin", "a", "sleep:0.05")
    start = time.monotonic()
    failpoint("a")
    assert time.monotonic() - start >= 0.05


def test_a_forked_child_listens_where_its_parent_did(shm: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from headway.common.node.failpoints import configure, failpoint
configure(Path(sys.argv[1]))
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(read, 1)
    failpoint("forked")
    os._exit(0)
print("up", flush=True)
sys.stdin.readline()
os.write(write, b"x")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
    with python_child(code, shm / "fp.bin") as child:
        assert read_line(child) == "up"
        arm(shm / "fp.bin", "forked")
        send_line(child, "go")
        assert read_line(child) == "-9"


def test_what_cannot_be_armed_is_bad_input_and_changes_nothing(shm: Path) -> None:
    path = shm / "fp.bin"
    arm(path, "a", "kill", key="good")
    with pytest.raises(InputError, match="'explode' is unknown"):
        arm(path, "a", "explode")
    with pytest.raises(InputError, match="unfit"):
        arm(path, "a", "kill", key="../x")
    with pytest.raises(InputError, match="do not fit"):
        arm(path, "n" * 70_000, "kill", key="big")
    assert [entry.key for entry in armed(path)] == ["good"]


def test_failpoints_leave_nothing_open_when_turned_off(shm: Path) -> None:
    arm(shm / "fp.bin", "a", "raise", {"step": 99})
    with no_leaks(shm):
        for _ in range(5):
            configure(shm / "fp.bin")
            failpoint("a", step=1)
            configure(None)
