"""The arena against a model, with a crash possible between any two stores of the worker."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from headway.common.node.arena import Arena, ArenaSlot, SlotInfo
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

SLOT = 40


class Crash(BaseException):
    """The worker dies here."""


class FragileWords:
    """The arena's words, whose owner dies after ``budget`` more stores."""

    def __init__(self, words: memoryview, budget: int) -> None:
        self.words, self.budget = words, budget

    def __getitem__(self, index: int) -> int:
        return self.words[index]

    def __setitem__(self, index: int, value: int) -> None:
        if self.budget == 0:
            raise Crash
        self.budget -= 1
        self.words[index] = value


def content(step: int, attempt: int) -> bytes:
    return step.to_bytes(4, "little") + attempt.to_bytes(4, "little") + b"\x5a" * (SLOT - 8)


def create(path: Path, rank: int = 0) -> Arena:
    return Arena.create(
        path, run_id="00000000", rank=rank, slot_bytes=SLOT, layout=b"{}", extra_bytes=16
    )


class ArenaMachine(RuleBasedStateMachine):
    """One worker that keeps the protocol (commit s before it begins s + 1), one
    daemon, deaths of both."""

    @initialize()
    def make(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="headway-test-", dir="/dev/shm")
        self.path = Path(self.folder.name) / "a"
        self.worker, self.daemon = create(self.path), Arena.open(self.path)
        self.slot: ArenaSlot | None = None
        self.sealed = -1  # newest step sealed
        self.committed = -1
        self.attempt = 0
        self.expected: dict[int, bytes] = {}  # content of each sealed step's last attempt
        self.flushing: list[tuple[SlotInfo, bytes]] = []
        self.budget: int | None = None

    def _worker(self) -> Arena:
        if self.budget is not None:
            self.worker._words = FragileWords(self.worker._words, self.budget)  # type: ignore[assignment]
            self.budget = None
        return self.worker

    def _die(self) -> None:
        """A new process opens the file; it believes what the headers say, as a recovery does."""
        self.worker = Arena.open(self.path)
        self.slot, self.budget = None, None
        newest = self.worker.newest()
        found = newest.step if newest else -1
        assert found in (self.sealed, self.sealed + 1), "a sealed snapshot was lost"
        assert self.worker.committed in (self.committed, self.sealed)
        self.sealed = found
        self.committed = self.worker.committed

    @rule(budget=st.integers(0, 14))
    def doom(self, budget: int) -> None:
        self.budget = budget

    @precondition(lambda self: self.slot is None and self.committed == self.sealed)
    @rule()
    def begin(self) -> None:
        self.attempt += 1
        try:
            self.slot = self._worker().begin(self.sealed + 1, 1)
        except Crash:
            self._die()

    @precondition(lambda self: self.slot is not None)
    @rule(part=st.integers(0, SLOT))
    def write(self, part: int) -> None:
        assert self.slot is not None
        self.slot.data[:part] = np.frombuffer(content(self.slot.step, self.attempt), np.uint8)[
            :part
        ]

    @precondition(lambda self: self.slot is not None)
    @rule(want=st.booleans())
    def seal(self, want: bool) -> None:
        assert self.slot is not None
        whole = content(self.slot.step, self.attempt)
        self.slot.data[:] = np.frombuffer(whole, np.uint8)
        before = self.expected.get(self.slot.step)
        self.expected[self.slot.step] = whole
        try:
            worker = self._worker()
            worker.seal(self.slot, whole[:8], want and not worker.busy())
            self.sealed, self.slot = self.slot.step, None
        except Crash:
            step = self.slot.step
            self._die()
            if self.sealed < step and before is not None:
                self.expected[step] = before

    @precondition(lambda self: self.sealed > self.committed)
    @rule()
    def commit(self) -> None:
        try:
            self._worker().commit(self.sealed)
            self.committed = self.sealed
        except Crash:
            self._die()

    @rule()
    def die(self) -> None:
        self._die()

    @precondition(lambda self: self.sealed > 0)
    @rule(back=st.integers(0, 2))
    def recover(self, back: int) -> None:
        """Restore an older step that is still there, as after the loss of a node."""
        steps = [info.step for info in self.worker.sealed()]
        step = steps[max(len(steps) - 1 - back, 0)]
        try:
            self._worker().invalidate_newer(step)
        except Crash:  # its successor is told the same step
            self.worker = Arena.open(self.path)
            self.worker.invalidate_newer(step)
        self.worker = Arena.open(self.path)
        self.worker.commit(step)
        self.sealed = self.committed = step
        self.slot, self.budget = None, None

    @rule()
    def flush_begins(self) -> None:
        busy = {info.seal for info, _ in self.flushing}
        for info in self.daemon.wanted():
            assert info.step <= self.daemon.committed
            if info.seal not in busy:
                self.flushing.append((info, self.daemon.read(info)[0].tobytes()))

    @precondition(lambda self: self.flushing)
    @rule()
    def flush_ends(self) -> None:
        info, _ = self.flushing.pop(0)
        self.daemon.release(info)
        assert info.seal not in {s.seal for s in self.daemon.wanted()}

    @rule()
    def daemon_dies(self) -> None:
        self.daemon = Arena.open(self.path)
        self.flushing = []

    @invariant()
    def every_sealed_step_reads_bit_for_bit(self) -> None:
        if not hasattr(self, "folder"):
            return
        for info in self.daemon.sealed():
            data, extra = self.daemon.read(info)
            assert data.tobytes() == self.expected[info.step]
            assert extra == self.expected[info.step][:8]

    @invariant()
    def the_newest_committed_step_is_there(self) -> None:
        if hasattr(self, "folder") and self.committed >= 0:
            data, _ = self.daemon.view(self.committed)
            assert data.tobytes() == self.expected[self.committed]

    @invariant()
    def a_slot_being_flushed_changes_only_by_a_recovery_that_shows(self) -> None:
        for info, seen in getattr(self, "flushing", []):
            if self.daemon.unchanged(info):
                assert self.daemon.read(info)[0].tobytes() == seen
            else:
                assert info.seal not in {s.seal for s in self.daemon.sealed()}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


ArenaMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
TestArenaAgainstItsModel = ArenaMachine.TestCase


def live(arena: Arena, daemon: Arena, sealed: list[int]) -> None:
    """Six snapshots, one of them wanted and flushed, a recovery to step 4, one
    more; notes the sealed."""
    for step, attempt in [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (5, 1)]:
        if (step, attempt) == (5, 1):
            sealed[:] = [s for s in sealed if s <= 5]
            arena.invalidate_newer(5)
            sealed[:] = [s for s in sealed if s <= 4]
            arena.invalidate_newer(4)
        slot = arena.begin(step, attempt)
        slot.data[:] = np.frombuffer(content(step, attempt), np.uint8)
        arena.seal(slot, content(step, attempt)[:8], wanted=step == 1)
        sealed.append(step)
        arena.commit(step)
        if step == 3:
            for info in daemon.wanted():
                daemon.release(info)
            arena.trim()


def test_a_death_between_any_two_stores_of_the_worker_loses_and_invents_nothing(shm: Path) -> None:
    deaths = 0
    for budget in range(1000):
        path, sealed = shm / str(budget), [-1]
        arena, daemon = create(path), Arena.open(path)
        arena._words = FragileWords(arena._words, budget)  # type: ignore[assignment]
        try:
            live(arena, daemon, sealed)
            break
        except Crash:
            deaths += 1
        found = {info.step: info for info in daemon.sealed()}
        for info in found.values():
            data, extra = daemon.read(info)
            assert data.tobytes() == content(info.step, info.generation)
            assert extra == content(info.step, info.generation)[:8]
        assert sealed[-1] == -1 or sealed[-1] in found
        assert daemon.committed == -1 or daemon.committed in found
        assert [info.step for info in daemon.wanted()] in ([], [1])
        assert daemon.wanted() == [] or sealed[-1] in (1, 2, 3), "released, and wanted again"
        daemon.unlink()
    assert deaths > 70


class Rank:
    """One rank's side of the protocol, cut into the pieces that other ranks may see it between."""

    def __init__(self, path: Path, rank: int) -> None:
        self.arena, self.rank = create(path, rank), rank
        self.step = 0  # the snapshot being made
        self.slot: ArenaSlot | None = None
        self.waiting = False  # in the norm all-reduce that commits ``step``

    def expected(self, step: int, epoch: int) -> bytes:
        return content(step, self.rank * 1000 + epoch)

    def advance(self, wanted: bool, epoch: int) -> None:
        """The next piece: begin, then copy and seal, then enter the
        all-reduce. Never called in it."""
        if self.slot is None:
            self.slot = self.arena.begin(self.step, epoch)
            self.slot.data[: SLOT // 2] = 0xEE
        else:
            self.slot.data[:] = np.frombuffer(self.expected(self.step, epoch), np.uint8)
            self.arena.seal(self.slot, b"", wanted and not self.arena.busy())
            self.slot, self.waiting = None, True

    def leave(self) -> None:
        """The all-reduce has ended here."""
        self.arena.commit(self.step)
        self.step, self.waiting = self.step + 1, False

    def recover(self, step: int) -> None:
        self.arena.invalidate_newer(step)
        self.arena.commit(step)
        self.step, self.slot, self.waiting = step + 1, None, False


def newest_common_step(ranks: list[Rank]) -> int:
    """The newest step that every rank holds sealed: there always is one."""
    return max(set.intersection(*({info.step for info in r.arena.sealed()} for r in ranks)))


@settings(max_examples=200)
@given(
    st.integers(2, 4),
    st.lists(
        st.tuples(st.sampled_from("aaaaaafx"), st.integers(0, 3), st.booleans()),
        min_size=40,
        max_size=200,
    ),
)
def test_ranks_in_lock_step_always_share_a_sealed_step(
    num_ranks: int, moves: list[tuple[str, int, bool]]
) -> None:
    """a: a rank advances; f: its daemon finishes a flush; x: every rank dies, all recover."""
    with tempfile.TemporaryDirectory(prefix="headway-test-", dir="/dev/shm") as folder:
        ranks = [Rank(Path(folder) / str(rank), rank) for rank in range(num_ranks)]
        may_leave = [False] * num_ranks
        epoch, started = 0, False
        epoch_of: dict[int, int] = {}
        for move, pick, wanted in moves:
            rank = ranks[pick % num_ranks]
            if move == "f":
                for info in rank.arena.wanted():
                    rank.arena.release(info)
            elif move == "x" and started:
                common = newest_common_step(ranks)
                epoch += 1
                for each in ranks:
                    each.recover(common)
                may_leave = [False] * num_ranks
                epoch_of = {s: e for s, e in epoch_of.items() if s <= common}
            elif move == "a" and may_leave[rank.rank]:
                rank.leave()
                may_leave[rank.rank] = False
            elif move == "a" and not rank.waiting:
                epoch_of.setdefault(rank.step, epoch)
                rank.advance(wanted, epoch)
            if all(r.waiting for r in ranks) and not any(may_leave):
                # the all-reduce may end, rank by rank
                may_leave, started = ([True] * num_ranks, True)
            if started:
                common = newest_common_step(ranks)
                assert common >= max(r.arena.committed for r in ranks)
                for each in ranks:
                    assert each.arena.view(common)[0].tobytes() == each.expected(
                        common, epoch_of[common]
                    )
