"""The ring against a model: whatever the interleaving, each slot arrives whole, once, in order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from headway.common.node.ring import RingReader, RingWriter
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

SLOT_BYTES = 24


def content(seq: int) -> bytes:
    return seq.to_bytes(8, "little") * (SLOT_BYTES // 8)


class RingMachine(RuleBasedStateMachine):
    @initialize(num_slots=st.integers(1, 4), num_readers=st.integers(1, 3))
    def make(self, num_slots: int, num_readers: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="headway-test-", dir="/dev/shm")
        self.path = Path(self.folder.name) / "r"
        self.num_slots = num_slots
        self.writer = RingWriter.create(
            self.path,
            spec=b"spec",
            slot_bytes=SLOT_BYTES,
            num_slots=num_slots,
            num_readers=num_readers,
        )
        self.readers = [RingReader(self.path, k) for k in range(num_readers)]
        self.slot: memoryview | None = None
        self.published = 0
        self.taken = [0] * num_readers  # next slot each reader must get
        self.released = [0] * num_readers
        self.held: list[dict[int, memoryview]] = [{} for _ in range(num_readers)]

    @rule()
    def reserve(self) -> None:
        self.slot = self.writer.reserve()
        assert (self.slot is None) == (self.published - min(self.released) >= self.num_slots)

    @precondition(lambda self: self.slot is not None)
    @rule(part=st.integers(0, SLOT_BYTES))
    def scribble(self, part: int) -> None:
        assert self.slot is not None
        self.slot[:part] = b"\xee" * part

    @precondition(lambda self: self.slot is not None)
    @rule()
    def publish(self) -> None:
        assert self.slot is not None
        self.slot[:] = content(self.published)
        assert self.writer.publish(self.published) == self.published
        self.published += 1
        self.slot = None

    @rule(k=st.integers(0, 2))
    def poll(self, k: int) -> None:
        k %= len(self.readers)
        found = self.readers[k].poll()
        if self.taken[k] == self.published:
            assert found is None
            return
        assert found is not None
        assert found[0] == self.taken[k]
        assert self.readers[k].digest(found[0]) == found[0]
        self.held[k][found[0]] = found[1]
        self.taken[k] += 1

    @rule(k=st.integers(0, 2), pick=st.integers(0, 3))
    def release(self, k: int, pick: int) -> None:
        k %= len(self.readers)
        if self.held[k]:
            seq = sorted(self.held[k])[pick % len(self.held[k])]
            self.readers[k].release(seq)
            self.released[k] = seq + 1
            self.held[k] = {s: v for s, v in self.held[k].items() if s > seq}

    @rule(clean=st.booleans())
    def writer_dies_and_another_adopts(self, clean: bool) -> None:
        if not clean:
            # a pid that no process has: the record of a dead writer
            self.writer._words[16] = 2**22 + 1
        self.slot = None
        self.writer.close()
        self.writer = RingWriter.adopt(self.path)
        assert self.writer.head == self.published

    @rule(k=st.integers(0, 2))
    def reader_dies_and_another_opens(self, k: int) -> None:
        k %= len(self.readers)
        self.readers[k].close()
        self.readers[k] = RingReader(self.path, k)
        self.held[k] = {}
        self.taken[k] = self.released[k]

    @invariant()
    def held_slots_keep_their_content(self) -> None:
        for held in getattr(self, "held", []):
            for seq, slot in held.items():
                assert bytes(slot) == content(seq)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for end in (self.writer, *self.readers):
                end.close()
            self.folder.cleanup()


RingMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50)
TestRingAgainstItsModel = RingMachine.TestCase
