"""Fills the rings of a node: one thread, ahead of the readers, round robin.

A ring's file outlives the daemon. A successor adopts it and continues at its head: the content of a
slot follows from the ring's specification and the slot's number. Errors of a stream are written to
an ``.error`` file next to its ring, where waiting readers find them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec
import xxhash
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.common.log import get_logger
from headway.common.node.ring import RingWriter
from headway.dataloader.config import StreamSpec
from headway.dataloader.filled_stream import Stream
from headway.dataloader.jobs import is_living
from headway.dataloader.pack import Packer
from headway.dataloader.shared import SharedPackers
from headway.dataloader.stream import SLOT_FORMAT, check, recorded, refuse_changed, slot_bytes
from headway.dataloader.trouble import error_path

_SLOTS_A_TURN = 4  # then the next ring is served
_STOP_S = 5.0
_FIRST_PAUSE_S = 50e-6
_LONGEST_PAUSE_S = 5e-3  # 200 wake-ups a second when idle; a ring of 16 slots lasts far longer

_log = get_logger("dataloader")


def ring_path(shm_dir: Path, spec: StreamSpec) -> Path:
    """One ring per (job, generation, dp rank, split); a job may be any text."""
    job = f"{xxhash.xxh3_64_hexdigest(spec.job.encode())}-" if spec.job else ""
    return shm_dir / f"ring-{job}g{spec.generation}-d{spec.dp_rank}-{spec.split}.bin"


class Prefetcher:
    """All rings of a node.

    ``open``, ``close`` and ``adopt`` are called by one thread; ``start`` begins the one that fills
    the rings.
    """

    def __init__(self, shm_dir: Path) -> None:
        self.shm_dir = shm_dir
        self.num_batches = 0
        self.num_tokens = 0
        self.num_adopted = 0
        self.num_turns = 0
        """Completed passes over all rings, including full ones; does not change
        while filling hangs."""
        self._streams: tuple[
            Stream, ...
        ] = ()  # replaced whole: the filling thread reads it without a lock
        self._refused: set[Path] = set()
        self._shared = SharedPackers(shm_dir)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fill", daemon=True)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The rings that are being filled."""
        return self._streams

    def start(self) -> None:
        """Begin to fill."""
        self._thread.start()

    def stop(self, *, unlink: bool) -> None:
        """End the thread and close every ring; without ``unlink`` a successor may adopt them.

        A thread that hangs in a read is abandoned after 5 s; it ends with the process.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        for stream in self._streams:
            stream.close(unlink=unlink)
        self._streams = ()
        if unlink:
            self._shared.close()

    def packer(self, spec: StreamSpec) -> Packer:
        """What ``open`` needs and may take long: the opened data of ``spec``. From any thread."""
        check(spec)
        return self._shared.packer(spec)

    def open(self, spec: StreamSpec, packer: Packer | None = None) -> Stream:
        """The stream of ``spec``, created if it is new; rings of older generations are removed.

        ``packer``: its opened data; without it they are opened here, unless the ring is known.

        Raises:
            InputError: ``spec`` is inconsistent, or contradicts its ring or a newer generation;
                missing data; shared memory is full.
            CorruptError: damaged data.
        """
        check(spec)
        self.adopt()
        newest = self._newest(spec.job)
        if spec.generation < newest:
            raise InputError(
                f"generation {spec.generation} is over, {newest} is open",
                remedy="join the newest generation",
            )
        known = self._find(spec.job, spec.generation, spec.dp_rank, spec.split)
        if known is not None:
            _refuse_other(spec, known.spec)
            return known
        packer = packer or self._shared.packer(spec)
        spec = _marked(spec, recorded(packer.tokens))
        self._drop(
            stream
            for stream in self._streams
            if stream.spec.job == spec.job and stream.spec.generation < spec.generation
        )
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
                slot_format=SLOT_FORMAT,
            )
        except FileExistsError as error:
            raise InputError(
                f"{path} is in use by another dataloader", remedy="run one per --shm-dir"
            ) from error
        stream = Stream(spec, writer, self._shared, packer)
        self._streams = (*self._streams, stream)
        return stream

    def is_open(self, spec: StreamSpec) -> bool:
        """Whether ``open`` finds the ring of ``spec``, or refuses it, without opening data."""
        self.adopt()
        known = self._find(spec.job, spec.generation, spec.dp_rank, spec.split)
        return spec.generation < self._newest(spec.job) or known is not None

    def close(
        self, generation: int, dp_rank: int, split: str, *, job: str = "", if_left: bool = False
    ) -> bool:
        """Remove a ring, with ``if_left`` only if all readers have left; False if there is none."""
        stream = self._find(job, generation, dp_rank, split)
        if stream is None or (if_left and not stream.writer.unlink_if_left()):
            return False
        self._drop([stream])
        return True

    def adopt(self) -> int:
        """Take over the rings that a dead predecessor left in ``shm_dir``; returns how many.

        Rings that all readers have left are removed. May be called repeatedly.
        """
        self._drop(
            stream
            for stream in self._streams
            if stream.writer.unlink_if_left() or not is_living(stream.spec.job)
        )
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
            _refuse_misfit(spec, writer)
        except (ValueError, InputError, CorruptError) as error:
            writer.close()
            self._refused.add(path)
            _log.error("ring not adopted", ring=str(path), reason=str(error))
            return False
        self._streams = (*self._streams, Stream(spec, writer, self._shared, None))
        _log.info("ring adopted", ring=path.name, head=writer.head)
        return True

    def fill(self) -> bool:
        """One pass over all rings; False if all were full."""
        filled = sum(self._fill(stream) for stream in self._streams)
        self.num_turns += 1
        return filled > 0

    def _fill(self, stream: Stream) -> int:
        try:
            filled = stream.fill(_SLOTS_A_TURN)
        except Exception:
            # A bug in one stream must not stop the filling of all.
            _log.exception("filling failed", ring=stream.writer.path.name)
            stream.rest()
            return 0
        self.num_batches += filled
        self.num_tokens += filled * stream.spec.micro_batch_size * stream.spec.seq_len
        return filled

    def _newest(self, job: str) -> int:
        """The newest generation of a job."""
        mine = (stream.spec for stream in self._streams if stream.spec.job == job)
        return max((spec.generation for spec in mine), default=0)

    def _find(self, job: str, generation: int, dp_rank: int, split: str) -> Stream | None:
        wanted = (job, generation, dp_rank, split)
        for stream in self._streams:
            spec = stream.spec
            if (spec.job, spec.generation, spec.dp_rank, spec.split) == wanted:
                return stream
        return None

    def _drop(self, streams: Iterable[Stream]) -> None:
        gone = list(streams)
        self._streams = tuple(stream for stream in self._streams if stream not in gone)
        for stream in gone:
            stream.close(unlink=True)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            if self.fill():
                pause_s = _FIRST_PAUSE_S
            else:
                self._stop.wait(pause_s)
                pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def _refuse_misfit(spec: StreamSpec, writer: RingWriter) -> None:
    """Raises CorruptError if the ring was not made for ``spec`` by a program like this one."""
    wanted = (SLOT_FORMAT, slot_bytes(spec), spec.ring_slots, spec.num_readers)
    found = (writer.slot_format, writer.slot_bytes, writer.num_slots, writer.num_readers)
    if found != wanted:
        raise CorruptError(
            f"slot format, slot bytes, slots and readers are {found}, wanted are {wanted}",
            remedy="open the stream with a new generation",
        )


def _marked(spec: StreamSpec, fingerprint: str) -> StreamSpec:
    return msgspec.structs.replace(spec, fingerprint=fingerprint)  # type: ignore[type-var]


def _refuse_other(asked: StreamSpec, known: StreamSpec) -> None:
    """Raise unless an existing ring belongs to the same stream."""
    if asked.path == known.path:
        refuse_changed(asked, known.fingerprint)
    asked = _marked(asked, known.fingerprint)
    for name in asked.__struct_fields__:
        ours, theirs = getattr(known, name), getattr(asked, name)
        if ours != theirs:
            raise InputError(
                f"the ring of generation {known.generation}, dp rank {known.dp_rank}, "
                f"{known.split} has {name}={ours}, but {theirs} was requested",
                remedy="open it with a new generation",
            )
