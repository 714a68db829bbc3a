"""Batches for a training loop: numpy views into the node's ring, or filled in process.

Both ways give equal bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from headway.common.errors import InputError
from headway.common.node.ring import RingAbortedError
from headway.dataloader.blocks import ChangedDataError as ChangedDataError
from headway.dataloader.config import StreamSpec
from headway.dataloader.pack import EndOfOrderError as EndOfOrderError
from headway.dataloader.ring_source import RingSource
from headway.dataloader.stream import (
    Filler,
    check,
    make_packer,
    num_slots,
    open_tokens,
    recorded,
    slot_bytes,
    slot_sample,
    slot_views,
)

Abort = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: the caller's own arrays, or views; see ``DataClient``.

    ``tokens`` and ``labels`` int32 [micro_batch_size, seq_len], labels shifted by one token;
    ``mask`` uint8 of the same shape, 1 = the label counts; ``sample`` is the global number of
    the first row's sample.
    """

    tokens: npt.NDArray[np.int32]
    labels: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8]
    sample: int


class _Source(Protocol):
    fingerprint: str
    first_slot: int

    def take(self, slot: int, abort: Abort | None) -> memoryview: ...
    def give_back(self) -> None: ...
    def close(self) -> None: ...


class DataClient:
    """Batches of one stream, in order: an iterator, and a context manager.

    ``source`` is the endpoint of the node's daemon (``ipc://...``), or None to read in this
    process. ``reader`` < ``spec.num_readers`` numbers the processes that need the same batches;
    each gets all of them, and no two live clients share a number. ``timeout_s`` bounds every wait,
    including the restart of a dead daemon, whose absence alone is not an error. ``abort`` is
    checked every 0.1 s while the daemon opens the stream; for waits for batches see ``next``.

    With ``copy`` a batch belongs to the caller. Without, it consists of read-only views of the
    slot, which the next call releases: do not use them after that.

    Raises:
        InputError: ``spec`` is inconsistent, the data do not exist, or a live process reads under
            this number (RingHeldError). CorruptError: damaged data.
        ChangedDataError: the data do not have ``spec.fingerprint``.
        ReadError: the disk or the network failed (without a daemon; with one it is waited for).
        DeadlineError: no daemon within ``timeout_s``. RingAbortedError: ``abort`` returned true.
    """

    def __init__(
        self,
        source: str | None,
        *,
        spec: StreamSpec,
        reader: int = 0,
        timeout_s: float = 120.0,
        abort: Abort | None = None,
        copy: bool = True,
    ) -> None:
        check(spec)
        if abort is not None and abort():
            raise RingAbortedError(f"opening {spec.path} aborted")
        self.spec = spec
        self._copy = copy
        self._source: _Source = (
            _InProcess(spec)
            if source is None
            else RingSource(source, spec, reader, timeout_s, abort)
        )
        self._slot = self._source.first_slot
        self._end = num_slots(spec)
        self._is_closed = False
        self._pid = os.getpid()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data and version of their order.

        Store it in a checkpoint and pass it in the next ``spec``, which then continues in this
        order and refuses other data.
        """
        return self._source.fingerprint

    @property
    def next_sample(self) -> int:
        """Global number of the first sample in the next batch."""
        return slot_sample(self.spec, self._slot)

    def next(self, abort: Abort | None = None) -> Batch:
        """The next batch. The slot of the previous one is released, and its views become invalid.

        ``abort`` is checked while waiting.

        Raises:
            RingAbortedError: ``abort`` returned true.
            DeadlineError: ``timeout_s`` passed; says why and for how long, if
                reading failed meanwhile.
            CorruptError: damaged data; names file and position.
            ReadError: the disk or the network failed (without a daemon); a later call may succeed.
            EndOfOrderError: the stream has ended; every later call raises it too.
            InputError: this is a fork of the process that opened the client.
        """
        self._refuse_fork()
        self._source.give_back()
        if self._has_ended:
            raise self._end_error()
        payload = self._source.take(self._slot, abort)
        batch = self._batch(payload)
        self._slot += 1
        return batch

    def _batch(self, payload: memoryview) -> Batch:
        rows, mask = slot_views(self.spec, payload)
        tokens, labels, sample = rows[:, :-1], rows[:, 1:], slot_sample(self.spec, self._slot)
        if self._copy:
            return Batch(tokens.copy(), labels.copy(), mask.copy(), sample)
        for view in (tokens, labels, mask):
            view.flags.writeable = False
        return Batch(tokens, labels, mask, sample)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Like ``next``; the end of a stream with ``num_samples`` ends the loop."""
        self._refuse_fork()
        if self._has_ended:
            self._source.give_back()
            raise StopIteration
        return self.next()

    def _refuse_fork(self) -> None:
        """Two processes with one client would both get the same samples."""
        if os.getpid() != self._pid:
            raise InputError(
                f"process {os.getpid()} uses the data client of process {self._pid}, from which it "
                "was forked: both would read the same samples",
                remedy="open a client in each process, with a dp_rank of its own",
            )

    @property
    def _has_ended(self) -> bool:
        return self._end is not None and self._slot >= self._end

    def _end_error(self) -> EndOfOrderError:
        spec = self.spec
        return EndOfOrderError(
            f"the stream has ended: num_samples={spec.num_samples} contain no further whole global "
            f"batch of {spec.global_batch_size} after {self._slot // spec.num_micro_batches} of "
            "them",
            remedy="raise num_samples, or set it to 0 for an endless order",
        )

    def close(self) -> None:
        """Release everything, without waiting; may be repeated.

        The last reader has the ring removed.
        """
        if not self._is_closed:
            self._is_closed = True
            if os.getpid() == self._pid:  # a fork holds nothing
                self._source.close()

    def __enter__(self) -> DataClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _InProcess:
    """Fills one buffer, in the caller's thread."""

    first_slot = 0

    def __init__(self, spec: StreamSpec) -> None:
        tokens, vocab_size = open_tokens(spec)
        self.fingerprint = recorded(tokens)
        self._filler = Filler(spec, make_packer(spec, tokens, vocab_size))
        self._buffer = memoryview(bytearray(slot_bytes(spec)))

    def take(self, slot: int, _abort: Abort | None) -> memoryview:
        self._filler.fill(self._buffer, slot)
        return self._buffer

    def give_back(self) -> None:
        """The next ``take`` overwrites the buffer."""

    def close(self) -> None:
        self._buffer = memoryview(b"")
