"""Opens data on threads of their own, so that a large index or a slow disk delays no beat."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from headway.common.errors import HeadwayError
from headway.common.wire.server import Later
from headway.dataloader.config import StreamSpec
from headway.dataloader.filled_stream import Stream
from headway.dataloader.jobs import job_for
from headway.dataloader.pack import Packer
from headway.dataloader.prefetch import Prefetcher


@dataclass(eq=False)
class _Opening:
    spec: StreamSpec
    process: str
    later: Later
    since_s: float = field(default_factory=time.monotonic)
    done: Callable[[], Packer] | None = None
    """Returns what was opened, or raises why it was not; set by the thread as its last act."""


class Opener:
    """Requests whose data are being opened.

    Used by the server's thread, which calls ``finish`` when ``done_fd`` is readable.
    """

    def __init__(self, prefetcher: Prefetcher) -> None:
        self._prefetcher = prefetcher
        self._open: list[_Opening] = []
        self.done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def begin(self, spec: StreamSpec, process: str) -> Later:
        """Open the data of ``spec`` for ``process``; the reply follows."""
        opening = _Opening(spec, process, Later())
        self._open.append(opening)
        # a thread in a hanging read cannot be ended, and must not delay the exit
        threading.Thread(target=self._run, args=(opening,), name="open", daemon=True).start()
        return opening.later

    def finish(self, answer: Callable[[Later, Stream | HeadwayError], None]) -> None:
        """Make the rings of all data that are open by now, and ``answer``."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.done_fd)
        for opening in [one for one in self._open if one.done is not None]:
            self._open.remove(opening)
            try:
                stream: Stream | HeadwayError = self._made(opening)
            except HeadwayError as error:
                stream = error
            answer(opening.later, stream)

    def _made(self, opening: _Opening) -> Stream:
        assert opening.done is not None
        packer = opening.done()
        # another process may have taken the place meanwhile
        job = job_for(opening.spec, opening.process, self._prefetcher.streams)
        spec = msgspec.structs.replace(opening.spec, job=job)  # type: ignore[type-var]
        stream = self._prefetcher.open(spec, packer)
        stream.asked_by = stream.asked_by or opening.process
        return stream

    def waits(self) -> dict[str, float]:
        """Path of what is being opened -> for how many seconds."""
        now_s = time.monotonic()
        return {one.spec.path: now_s - one.since_s for one in reversed(self._open)}

    def _run(self, opening: _Opening) -> None:
        try:
            packer = self._prefetcher.packer(opening.spec)
        except HeadwayError as error:
            opening.done = _raising(error)
        except Exception as error:  # to the client, as from a handler
            opening.done = _raising(HeadwayError(f"{type(error).__name__}: {error}"))
        else:
            opening.done = lambda: packer
        os.eventfd_write(self.done_fd, 1)


def _raising(error: HeadwayError) -> Callable[[], Packer]:
    def raise_it() -> Packer:
        raise error

    return raise_it
