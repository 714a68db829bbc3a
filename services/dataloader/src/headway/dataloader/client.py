"""How do batches reach a training loop? Numpy views into the node's ring, or filled in process; bit-equal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from headway.common.errors import CorruptError, DeadlineError, HeadwayError, InputError, RemoteError
from headway.common.node.ring import RingReader
from headway.common.wire.client import Client
from headway.common.wire.message import Message
from headway.common.wire.messages.dataloader import (
    CloseStream,
    OpenStream,
    StreamClosed,
    StreamOpened,
)
from headway.dataloader.config import StreamSpec
from headway.dataloader.pack import EndOfOrderError as EndOfOrderError
from headway.dataloader.stream import (
    Filler,
    check,
    make_packer,
    num_slots,
    open_tokens,
    slot_bytes,
    slot_sample,
    slot_views,
)
from headway.dataloader.trouble import read_trouble

_CALL_S = 2.0
_GOODBYE_S = 0.2
_LOOK_S = 0.05  # between two looks for trouble while waiting

Abort = Callable[[], bool]
T = TypeVar("T", bound=Message)


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch, read-only views that are valid until the client's next call.

    ``tokens`` and ``labels`` int32 [micro_batch_size, seq_len], labels one token ahead; ``mask`` uint8 of
    the same shape, 1 = the label counts; ``sample`` is the global number of the first row's sample.
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

    ``source`` is the endpoint of the node's daemon (``ipc://...``), or None to read in this process.
    ``reader`` < ``spec.num_readers`` tells the processes apart that need the same batches; each gets all of
    them. ``timeout_s`` bounds every wait, a dead daemon's restart included: its absence alone is no error.

    Raises:
        InputError: ``spec`` contradicts itself, or there are no such data. CorruptError: damaged data.
        DeadlineError: no daemon within ``timeout_s``.
    """

    def __init__(
        self, source: str | None, *, spec: StreamSpec, reader: int = 0, timeout_s: float = 120.0
    ) -> None:
        check(spec)
        self.spec = spec
        self._source: _Source = (
            _InProcess(spec) if source is None else _Ring(source, spec, reader, timeout_s)
        )
        self._slot = self._source.first_slot
        self._end = num_slots(spec)
        self._is_closed = False

    @property
    def fingerprint(self) -> str:
        """Of the data: keep it with a checkpoint, and give it in the next ``spec`` to be told when data
        changed.
        """
        return self._source.fingerprint

    @property
    def next_sample(self) -> int:
        """Global number of the first sample in the next batch."""
        return slot_sample(self.spec, self._slot)

    def next(self, abort: Abort | None = None) -> Batch:
        """The next batch. The previous one's views are given back and must not be used any more.

        ``abort`` is asked while waiting.

        Raises:
            RingAbortedError: ``abort`` returned true. DeadlineError: ``timeout_s`` passed.
            CorruptError: damaged data; file and place are named.
            EndOfOrderError: the stream has ended, at once and on every later call.
        """
        self._source.give_back()
        if self._has_ended:
            raise self._end_error()
        payload = self._source.take(self._slot, abort)
        tokens, mask = slot_views(self.spec, payload)
        tokens.flags.writeable = mask.flags.writeable = False
        batch = Batch(tokens[:, :-1], tokens[:, 1:], mask, slot_sample(self.spec, self._slot))
        self._slot += 1
        return batch

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """As ``next``; the end of a stream with ``num_samples`` ends the loop."""
        if self._has_ended:
            self._source.give_back()
            raise StopIteration
        return self.next()

    @property
    def _has_ended(self) -> bool:
        return self._end is not None and self._slot >= self._end

    def _end_error(self) -> EndOfOrderError:
        spec = self.spec
        return EndOfOrderError(
            f"the stream has ended: num_samples={spec.num_samples} hold no further whole global "
            f"batch of {spec.global_batch_size} after sample {spec.start_sample}",
            remedy="raise num_samples, or set it to 0 for an endless order",
        )

    def close(self) -> None:
        """Let go. A ring that had this reader only is removed. May be repeated."""
        if not self._is_closed:
            self._is_closed = True
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
        self.fingerprint = tokens.fingerprint()
        self._filler = Filler(spec, make_packer(spec, tokens, vocab_size))
        self._buffer = memoryview(bytearray(slot_bytes(spec)))

    def take(self, slot: int, _abort: Abort | None) -> memoryview:
        self._filler.fill(self._buffer, slot)
        return self._buffer

    def give_back(self) -> None:
        """The buffer is written again by the next ``take``."""

    def close(self) -> None:
        self._buffer = memoryview(b"")


class _Ring:
    """Reads the daemon's ring; the daemon itself is asked only to open and to close it."""

    def __init__(self, endpoint: str, spec: StreamSpec, reader: int, timeout_s: float) -> None:
        if not 0 <= reader < spec.num_readers:
            raise InputError(
                f"reader {reader} of {spec.num_readers}", remedy="use 0 <= reader < num_readers"
            )
        self._endpoint, self._spec, self._timeout_s = endpoint, spec, timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._reader = self._open(reader)
        if spec.num_readers == 1 and self._reader.tail:
            # Left by a predecessor of the same generation that was killed: nobody else reads it, so begin
            # anew.
            self._reader.close()
            self._call(self._close_message(), StreamClosed)
            self._reader = self._open(reader)
        self.first_slot = self._reader.tail
        self._held: int | None = None
        self._look_at_s = 0.0

    def _open(self, reader: int) -> RingReader:
        opened = self._call(OpenStream(spec=self._spec), StreamOpened)
        self.fingerprint = opened.fingerprint
        try:
            return RingReader(Path(opened.path), reader)
        except FileNotFoundError as error:
            raise DeadlineError(
                f"ring {opened.path} is gone again", remedy="join the newest generation"
            ) from error

    def _close_message(self) -> CloseStream:
        return CloseStream(
            generation=self._spec.generation, dp_rank=self._spec.dp_rank, split=self._spec.split
        )

    def _call(self, message: Message, reply: type[T]) -> T:
        while True:
            left_s = self._deadline_s - time.monotonic()
            with Client(self._endpoint) as client:
                try:
                    return client.call(message, reply, timeout_s=max(0.01, min(_CALL_S, left_s)))
                except RemoteError as error:
                    raise _as_local(error) from error
                except DeadlineError as error:
                    if left_s > _CALL_S:
                        continue
                    raise DeadlineError(
                        f"no dataloader answers at {self._endpoint} in {self._timeout_s:g} s",
                        remedy="start it, or read its log",
                    ) from error

    def take(self, slot: int, abort: Abort | None) -> memoryview:
        self._look_at_s = time.monotonic() + _LOOK_S

        def look() -> bool:
            if abort is not None and abort():
                return True
            if time.monotonic() >= self._look_at_s:
                self._look_at_s = time.monotonic() + _LOOK_S
                trouble = read_trouble(self._reader.path)
                if trouble is not None:
                    raise trouble
            return False

        seq, payload = self._reader.get(self._timeout_s, look)
        self._held = seq
        expected = slot_sample(self._spec, slot)
        if seq != slot or self._reader.digest(seq) != expected:
            raise CorruptError(
                f"slot {seq} of {self._reader.path} holds sample {self._reader.digest(seq)}, not {expected}",
                remedy="open the stream with a new generation",
            )
        return payload

    def give_back(self) -> None:
        if self._held is not None:
            self._reader.release(self._held)
            self._held = None

    def close(self) -> None:
        self._reader.close()
        if self._spec.num_readers == 1:
            # Without waiting: whoever leaves a generation must not hang on a dead daemon.
            client = Client(self._endpoint)
            with contextlib.suppress(HeadwayError):
                client.notify(self._close_message())
            client.close(linger_s=_GOODBYE_S)


def _as_local(error: RemoteError) -> HeadwayError:
    kinds: dict[str, type[HeadwayError]] = {
        "input": InputError,
        "config": InputError,
        "corrupt": CorruptError,
    }
    kind = kinds.get(error.remote_code)
    return error if kind is None else kind(error.message, remedy=error.remedy)
