"""Which rings does this node fill, and who fills them? One thread, ahead of the readers, round robin.

A ring's file outlives the daemon. A successor adopts it and goes on at its head: the content of a slot
follows from the ring's own specification and the slot's number. What went wrong with a stream stands beside
its ring in a ``.error`` file, so that a waiting reader learns it without asking anybody.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.common.node.ring import RingWriter
from headway.common.wire.messages.dataloader import StreamStatus
from headway.dataloader.config import StreamSpec
from headway.dataloader.pack import Packer
from headway.dataloader.stream import (
    Filler,
    check,
    make_packer,
    num_slots,
    open_tokens,
    refuse_changed,
    slot_bytes,
    slot_sample,
)
from headway.dataloader.trouble import error_path, tell_trouble

_SLOTS_A_TURN = 4  # then the next ring has its turn
_RETRY_S = 1.0
_FIRST_PAUSE_S = 50e-6
_LONGEST_PAUSE_S = 5e-3  # 200 wake-ups a second when idle; a ring of 16 slots lasts far longer

_log = structlog.get_logger(__name__)


def ring_path(shm_dir: Path, spec: StreamSpec) -> Path:
    """One ring per (generation, dp rank, split)."""
    return shm_dir / f"ring-g{spec.generation}-d{spec.dp_rank}-{spec.split}.bin"


class Stream:
    """One ring with what fills it. Filled by one thread, closed by another, under its lock."""

    def __init__(self, spec: StreamSpec, writer: RingWriter, filler: Filler | None) -> None:
        self.spec = spec
        self.writer = writer
        self.filler = filler
        self.end = num_slots(spec)
        self.has_ended = self.end is not None and writer.head >= self.end
        self.error: HeadwayError | None = None
        self.has_error_file = error_path(writer.path).exists()
        self.retry_at_s = 0.0
        self.is_closed = False
        self.lock = threading.Lock()

    def close(self, *, unlink: bool) -> None:
        """Stop filling; with ``unlink`` the file goes, and readers keep what they have mapped."""
        self.is_closed = True
        with self.lock:
            if unlink:
                self.writer.unlink()
                error_path(self.writer.path).unlink(missing_ok=True)
            self.writer.close()

    def status(self) -> StreamStatus | None:
        """None when it was closed meanwhile."""
        with self.lock:
            if self.is_closed:
                return None
            head = self.writer.head
            return StreamStatus(
                ring=str(self.writer.path),
                spec=self.spec,
                filled=head,
                released=self.writer.slowest_tail(),
                next_sample=slot_sample(self.spec, head),
                error="" if self.error is None else str(self.error),
                ended=self.has_ended,
            )


class Prefetcher:
    """All rings of a node. ``open``, ``close`` and ``adopt`` are called by one thread; ``start`` begins
    the filling one.
    """

    def __init__(self, shm_dir: Path) -> None:
        self.shm_dir = shm_dir
        self.num_batches = 0
        self.num_tokens = 0
        self.num_adopted = 0
        self._streams: tuple[
            Stream, ...
        ] = ()  # replaced whole: the filling thread reads it without a lock
        self._refused: set[Path] = set()
        self._packers: dict[tuple[object, ...], Packer] = {}
        self._packers_lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fill", daemon=True)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """What is filled now."""
        return self._streams

    def start(self) -> None:
        """Begin to fill."""
        self._thread.start()

    def stop(self, *, unlink: bool) -> None:
        """End the thread and let go of every ring; without ``unlink`` a successor may adopt them."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for stream in self._streams:
            stream.close(unlink=unlink)
        self._streams = ()

    def open(self, spec: StreamSpec) -> Stream:
        """The stream of ``spec``, made if it is new; rings of older generations go.

        Raises:
            InputError: ``spec`` contradicts itself, its ring or a newer generation; missing data; shared
                memory is full.
            CorruptError: damaged data.
        """
        check(spec)
        self.adopt()
        newest = max((stream.spec.generation for stream in self._streams), default=0)
        if spec.generation < newest:
            raise InputError(
                f"generation {spec.generation} is over, {newest} is open",
                remedy="join the newest generation",
            )
        known = self._find(spec.generation, spec.dp_rank, spec.split)
        if known is not None:
            _refuse_other(spec, known.spec)
            return known
        filler = self._make_filler(spec)
        spec = _marked(spec, filler.packer.tokens.fingerprint())
        self._drop(stream for stream in self._streams if stream.spec.generation < spec.generation)
        path = ring_path(self.shm_dir, spec)
        if path in self._refused:
            path.unlink(missing_ok=True)
            self._refused.discard(path)
        error_path(path).unlink(missing_ok=True)
        try:
            writer = RingWriter.create(
                path,
                spec=msgspec.json.encode(spec),
                slot_bytes=slot_bytes(spec),
                num_slots=spec.ring_slots,
                num_readers=spec.num_readers,
            )
        except FileExistsError as error:
            raise InputError(
                f"{path} is in use by another dataloader", remedy="run one per --shm-dir"
            ) from error
        stream = Stream(spec, writer, filler)
        self._streams = (*self._streams, stream)
        return stream

    def close(self, generation: int, dp_rank: int, split: str) -> bool:
        """Remove a ring; False if there is none."""
        stream = self._find(generation, dp_rank, split)
        if stream is not None:
            self._drop([stream])
        return stream is not None

    def adopt(self) -> int:
        """Take over the rings that a dead predecessor left in ``shm_dir``; returns how many. May be
        called again and again.
        """
        known = {stream.writer.path for stream in self._streams} | self._refused
        found = 0
        for path in sorted(set(self.shm_dir.glob("ring-*.bin")) - known):
            with contextlib.suppress(FileNotFoundError):
                found += self._adopt(path)
        self.num_adopted += found
        return found

    def _adopt(self, path: Path) -> bool:
        try:
            writer = RingWriter.adopt(path)
        except CorruptError as error:
            self._refused.add(path)
            _log.error("ring not adopted", ring=str(path), reason=str(error))
            return False
        except HeadwayError:
            return False  # its writer is alive: it may be about to end
        try:
            spec = msgspec.json.decode(writer.spec, type=StreamSpec)
            check(spec)
        except (msgspec.DecodeError, InputError) as error:
            writer.close()
            self._refused.add(path)
            _log.error("ring not adopted", ring=str(path), reason=str(error))
            return False
        self._streams = (*self._streams, Stream(spec, writer, None))
        _log.info("ring adopted", ring=path.name, head=writer.head)
        return True

    def fill(self) -> bool:
        """One turn over all rings; False when none had room."""
        return sum(self._fill(stream) for stream in self._streams) > 0

    def _fill(self, stream: Stream) -> bool:
        if stream.is_closed or stream.has_ended:
            return False
        if stream.error is not None and time.monotonic() < stream.retry_at_s:
            return False
        filled = 0
        with stream.lock:
            try:
                while filled < _SLOTS_A_TURN and not stream.is_closed and self._fill_slot(stream):
                    filled += 1
            except Exception as error:
                # told to the readers, and tried again: the files may be repaired
                self._failed(stream, error)
        self.num_batches += filled
        self.num_tokens += filled * stream.spec.micro_batch_size * stream.spec.seq_len
        return filled > 0

    def _fill_slot(self, stream: Stream) -> bool:
        payload = None if stream.has_ended else stream.writer.reserve()
        if payload is None:
            return False
        if stream.filler is None:
            stream.filler = self._make_filler(stream.spec)
        sample = stream.filler.fill(payload, stream.writer.head)
        head = stream.writer.publish(digest=sample) + 1
        stream.has_ended = stream.end is not None and head >= stream.end
        if stream.has_error_file:
            self._recovered(stream)
        return True

    def _failed(self, stream: Stream, error: Exception) -> None:
        known = stream.error
        stream.error = (
            error
            if isinstance(error, HeadwayError)
            else HeadwayError(f"{type(error).__name__}: {error}")
        )
        stream.retry_at_s = time.monotonic() + _RETRY_S
        stream.filler = None  # opened and checked anew
        with self._packers_lock:
            self._packers.clear()
        if known is None or str(known) != str(stream.error):
            ring = stream.writer.path.name
            _log.error("stream cannot be filled", ring=ring, reason=str(stream.error))
        with contextlib.suppress(OSError):
            tell_trouble(stream.writer.path, stream.error)
            stream.has_error_file = True

    def _recovered(self, stream: Stream) -> None:
        stream.error, stream.has_error_file = None, False
        error_path(stream.writer.path).unlink(missing_ok=True)
        _log.info("stream is filled again", ring=stream.writer.path.name)

    def _make_filler(self, spec: StreamSpec) -> Filler:
        tokens, vocab_size = open_tokens(spec)
        key = (
            spec.path,
            spec.split,
            tokens.fingerprint(),
            spec.seq_len,
            spec.seed,
            spec.num_samples,
        )
        with self._packers_lock:
            packer = self._packers.get(key)
        if packer is None:
            packer = make_packer(spec, tokens, vocab_size)
            with self._packers_lock:
                self._packers[key] = packer
        return Filler(spec, packer)

    def _find(self, generation: int, dp_rank: int, split: str) -> Stream | None:
        wanted = (generation, dp_rank, split)
        for stream in self._streams:
            if (stream.spec.generation, stream.spec.dp_rank, stream.spec.split) == wanted:
                return stream
        return None

    def _drop(self, streams: Iterable[Stream]) -> None:
        gone = list(streams)
        self._streams = tuple(stream for stream in self._streams if stream not in gone)
        for stream in gone:
            stream.close(unlink=True)
        with self._packers_lock:
            used = [stream.filler.packer for stream in self._streams if stream.filler is not None]
            self._packers = {key: packer for key, packer in self._packers.items() if packer in used}

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            if self.fill():
                pause_s = _FIRST_PAUSE_S
            else:
                self._stop.wait(pause_s)
                pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def _marked(spec: StreamSpec, fingerprint: str) -> StreamSpec:
    return msgspec.structs.replace(spec, fingerprint=fingerprint)  # type: ignore[type-var]


def _refuse_other(asked: StreamSpec, known: StreamSpec) -> None:
    """The same ring is only for the same stream."""
    if asked.path == known.path:
        refuse_changed(asked, known.fingerprint)
    asked = _marked(asked, known.fingerprint)
    for name in asked.__struct_fields__:
        ours, theirs = getattr(known, name), getattr(asked, name)
        if ours != theirs:
            raise InputError(
                f"the ring of generation {known.generation}, dp rank {known.dp_rank}, {known.split} has "
                f"{name}={ours}, asked was {theirs}",
                remedy="open it with a new generation",
            )
