from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.common.node import failpoints
from headway.common.node.arena import Arena
from headway.common.node.arming import arm
from headway.common.node.failpoints import FailpointError
from headway.common.node.process import ProcessId
from headway.common.node.testing import identity, no_leaks, python_child, read_line, send_line

SLOT = 1000


def make(path: Path, rank: int = 3) -> Arena:
    layout = b'{"tensors": []}'
    return Arena.create(
        path, run_id="0a1b2c3d", rank=rank, slot_bytes=SLOT, layout=layout, extra_bytes=100
    )


def snapshot(arena: Arena, step: int, *, wanted: bool = False, generation: int = 1) -> None:
    """Seal ``step``, then commit it, as the norm all-reduce of the next step would."""
    slot = arena.begin(step, generation)
    slot.data[:] = step % 256
    arena.seal(slot, b"extra %d" % step, wanted)
    arena.commit(step)


def test_a_snapshot_comes_back_bit_for_bit_in_another_mapping(tidy_shm: Path) -> None:
    with make(tidy_shm / "a") as arena, Arena.open(tidy_shm / "a", writable=False) as other:
        slot = arena.begin(0, 2)
        pattern = np.random.default_rng(0).integers(0, 256, SLOT, np.uint8)
        slot.data[:] = pattern
        arena.seal(slot, b"lr=1")
        data, extra = other.view(0)
        assert np.array_equal(data, pattern)
        assert (extra, other.layout, other.rank, other.run_id) == (
            b"lr=1",
            b'{"tensors": []}',
            3,
            "0a1b2c3d",
        )
        assert [(s.step, s.generation, s.wanted) for s in other.sealed()] == [(0, 2, False)]
        assert not data.flags.writeable
        arena.unlink()
        del slot, data


def test_a_doubt_concerns_one_snapshot_and_may_be_taken_back(shm: Path) -> None:
    arena = make(shm / "a")
    for step in range(5):
        arena.seal(arena.begin(step, 1), doubtful=step == 0)
        info = arena.newest()
        assert info is not None
        assert info.doubtful == (step == 0)
        arena.doubt(info, doubtful=step == 1)
        assert [i.doubtful for i in arena.sealed() if i.step == step] == [step == 1]
        arena.commit(step)


def test_an_unsealed_slot_does_not_count(shm: Path) -> None:
    arena = make(shm / "a")
    slot = arena.begin(0, 1)
    slot.data[:] = 1
    assert arena.sealed() == []
    assert arena.newest() is None
    with pytest.raises(HeadwayError, match="no snapshot of step 0"):
        arena.view(0)
    arena.seal(slot)
    with pytest.raises(ValueError, match="not being written"):
        arena.seal(slot)


def test_the_two_newest_snapshots_and_a_wanted_one_stay(shm: Path) -> None:
    arena = make(shm / "a")
    for step in range(10):
        snapshot(arena, step, wanted=step == 4)
    assert [s.step for s in arena.sealed()] == [4, 8, 9]
    assert arena.busy()
    (wanted,) = arena.wanted()
    arena.release(wanted)
    assert not arena.busy()
    assert arena.wanted() == []
    arena.trim()
    snapshot(arena, 10)
    assert [s.step for s in arena.sealed()] == [9, 10]


def test_a_wanted_snapshot_is_offered_only_once_it_is_committed(shm: Path) -> None:
    arena = make(shm / "a")
    arena.seal(arena.begin(0, 1), wanted=True)
    assert arena.wanted() == []
    assert arena.busy()
    arena.commit(0)
    assert [s.step for s in arena.wanted()] == [0]


def test_a_second_wanted_snapshot_is_refused_while_the_first_is_unreleased(shm: Path) -> None:
    arena = make(shm / "a")
    snapshot(arena, 0, wanted=True)
    slot = arena.begin(1, 1)
    with pytest.raises(ValueError, match="busy"):
        arena.seal(slot, wanted=True)
    arena.seal(slot)
    assert [s.wanted for s in arena.sealed()] == [True, False]


def test_sealing_ahead_of_the_commits_is_refused_before_it_can_destroy_anything(shm: Path) -> None:
    arena = make(shm / "a")
    for step in range(3):
        arena.seal(arena.begin(step, 1))
    with pytest.raises(HeadwayError, match="no free slot"):
        arena.begin(3, 1)
    arena.trim()
    assert [s.step for s in arena.sealed()] == [0, 1, 2]
    arena.commit(1)
    arena.seal(arena.begin(3, 1))
    assert [s.step for s in arena.sealed()] == [1, 2, 3]


def test_the_newest_committed_snapshot_is_not_given_up_for_a_pinned_one(shm: Path) -> None:
    arena = make(shm / "a")
    snapshot(arena, 0, wanted=True)
    snapshot(arena, 1)
    arena.seal(arena.begin(2, 1))
    with pytest.raises(HeadwayError, match="no free slot"):
        arena.begin(3, 1)
    assert [s.step for s in arena.sealed()] == [0, 1, 2]


def test_extra_state_that_does_not_fit_is_bad_input_and_seals_nothing(shm: Path) -> None:
    arena = make(shm / "a")
    slot = arena.begin(0, 1)
    with pytest.raises(InputError, match="101 bytes"):
        arena.seal(slot, b"x" * 101)
    assert arena.sealed() == []


def test_invalidating_drops_newer_and_unfinished_snapshots(shm: Path) -> None:
    arena = make(shm / "a")
    snapshot(arena, 0)
    arena.seal(arena.begin(1, 1))
    arena.begin(2, 1)
    arena.invalidate_newer(0)
    assert [s.step for s in arena.sealed()] == [0]
    assert arena.committed == 0
    snapshot(arena, 1, generation=2)
    assert [(s.step, s.generation) for s in arena.sealed()] == [(0, 1), (1, 2)]


def test_a_step_done_again_is_wanted_again_though_its_first_attempt_was_released(shm: Path) -> None:
    arena = make(shm / "a")
    snapshot(arena, 0)
    snapshot(arena, 1, wanted=True)
    (first,) = arena.wanted()
    arena.release(first)
    arena.invalidate_newer(0)
    snapshot(arena, 1, wanted=True, generation=2)
    assert [(s.step, s.generation) for s in arena.wanted()] == [(1, 2)]


def test_a_daemon_learns_that_the_slot_it_read_was_dropped_and_its_late_release_frees_nothing(
    shm: Path,
) -> None:
    worker = make(shm / "a")
    daemon = Arena.open(shm / "a")
    snapshot(worker, 0)
    snapshot(worker, 1, wanted=True)
    (info,) = daemon.wanted()
    assert daemon.unchanged(info)
    worker.invalidate_newer(0)
    assert not daemon.unchanged(info)
    snapshot(worker, 1, wanted=True, generation=2)
    assert not daemon.unchanged(info)
    daemon.release(info)
    assert worker.busy()


def test_a_file_that_is_no_arena_is_called_corrupt(tidy_shm: Path) -> None:
    path = tidy_shm / "a"
    path.write_bytes(b"\0" * 8192)
    with pytest.raises(CorruptError):
        Arena.open(path)
    path.unlink()
    with pytest.raises(InputError, match="rank -1"):
        make(path, rank=-1)
    with pytest.raises(InputError, match="run id"):
        Arena.create(path, run_id="nope", rank=0, slot_bytes=1, layout=b"")


def test_an_arena_opened_for_reading_cannot_be_changed(shm: Path) -> None:
    snapshot(make(shm / "a"), 0)
    reader = Arena.open(shm / "a", writable=False)
    with pytest.raises(TypeError):
        reader.commit(1)
    with pytest.raises(TypeError):
        reader.release(reader.sealed()[0])


def test_the_failpoint_in_seal_lies_before_the_snapshot_counts(shm: Path) -> None:
    failpoints.configure(shm / "fp.bin")
    arm(shm / "fp.bin", "arena.seal", "raise", {"rank": 3, "step": 1})
    arena = make(shm / "a")
    snapshot(arena, 0)
    with pytest.raises(FailpointError):
        snapshot(arena, 1)
    assert [s.step for s in arena.sealed()] == [0]


WORKER = """
import signal, sys
from pathlib import Path
from headway.common.node import failpoints
from headway.common.node.arena import Arena
failpoints.configure(Path(sys.argv[2]))
arena = Arena.open(Path(sys.argv[1]))
for step in range(int(sys.argv[3]), int(sys.argv[4])):
    slot = arena.begin(step, 1)
    slot.data[:500] = step
    if sys.argv[5] == "copy" and step == int(sys.argv[4]) - 1:
        print("half", flush=True)
        signal.pause()
    slot.data[500:] = step
    arena.seal(slot, b"extra %d" % step)
    arena.commit(step)
"""


@pytest.mark.parametrize("where", ["copy", "seal"])
def test_a_worker_killed_in_a_snapshot_leaves_the_older_ones_and_its_successor_goes_on(
    shm: Path, where: str
) -> None:
    path, points = shm / "a", shm / "fp.bin"
    make(path).close()
    if where == "seal":
        arm(points, "arena.seal", "kill", {"step": 6})
    with python_child(WORKER, path, points, 0, 7, where) as worker:
        if where == "copy":
            assert read_line(worker) == "half"
            worker.send_signal(signal.SIGKILL)
        assert worker.wait() == -9
    with Arena.open(path, writable=False) as reader:
        assert [s.step for s in reader.sealed()] == [5]
        data, extra = reader.view(5)
        assert set(data.tolist()) == {5}
        assert extra == b"extra 5"
    with python_child(WORKER, path, points, 6, 9, "none") as successor:
        assert successor.wait() == 0
    with Arena.open(path, writable=False) as reader:
        assert [s.step for s in reader.sealed()] == [7, 8]


CLAIM = """
import sys
from pathlib import Path
from headway.common.node.arena import Arena
arena = Arena.open(Path(sys.argv[1]))
for line in sys.stdin:
    try:
        if line.strip() == "write":
            arena.begin(0, 1)
        if line.strip() == "release":
            arena.release(arena.sealed()[0])
        if line.strip() == "close":
            arena.close()
        print("done", flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


def test_a_second_living_process_is_refused_by_pid_until_the_first_closes_or_dies(
    shm: Path,
) -> None:
    path = shm / "a"
    make(path).close()

    def ask(child: subprocess.Popen[str], what: str) -> str:
        send_line(child, what)
        return read_line(child)

    with python_child(CLAIM, path) as one, python_child(CLAIM, path) as two:
        assert ask(one, "write") == "done"
        refused = ask(two, "write")
        assert refused.startswith(
            f"HeadwayError: arena {path} is being written by process {one.pid}"
        )
        assert ask(one, "close") == "done"
        assert ask(two, "write") == "done"
        two.kill()
        two.wait()
        with python_child(CLAIM, path) as three:
            assert ask(three, "write") == "done", "a dead worker's place is free"
            with Arena.open(path, writable=False) as reader:
                assert reader.writer == identity(three)


def test_the_daemon_releases_slots_beside_a_living_worker_and_readers_claim_nothing(
    shm: Path,
) -> None:
    worker = make(shm / "a")
    snapshot(worker, 0, wanted=True)
    with python_child(CLAIM, shm / "a") as daemon:
        send_line(daemon, "release")
        assert read_line(daemon) == "done"
        send_line(daemon, "close")
        assert read_line(daemon) == "done"
    assert not worker.busy()
    assert worker.writer == ProcessId.current()
    with Arena.open(shm / "a", writable=False) as reader:
        reader.view(0)
    assert worker.writer == ProcessId.current()


def test_a_process_may_open_its_own_arena_again_after_it_closed_it(shm: Path) -> None:
    make(shm / "a").close()
    for step in range(3):
        with Arena.open(shm / "a") as arena:
            snapshot(arena, step)
    with Arena.open(shm / "a", writable=False) as reader:
        assert reader.writer.pid == 0
        assert [s.step for s in reader.sealed()] == [1, 2]


def test_arenas_leave_no_file_descriptor_and_no_mapping(shm: Path) -> None:
    with no_leaks(shm):
        for _ in range(10):
            with make(shm / "a") as arena:
                snapshot(arena, 0)
                data, _ = arena.view(0)
                arena.unlink()
                del data
