"""The daemon of a node: answers requests for streams, fills rings on a thread, sends beats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
from headway.common.errors import HeadwayError, InputError
from headway.common.node.run_dir import private_folder, shm_root
from headway.common.wire.message import Message
from headway.common.wire.messages.dataloader import (
    CloseStream,
    DataStatus,
    GetDataStatus,
    OpenStream,
    StreamClosed,
    StreamOpened,
)
from headway.common.wire.messages.service import State
from headway.common.wire.metrics import Metric, Metrics
from headway.common.wire.server import Handler, Later, Server
from headway.common.wire.service import Beat, Service
from headway.dataloader.config import StreamSpec
from headway.dataloader.filled_stream import Stream
from headway.dataloader.jobs import job_for
from headway.dataloader.opener import Opener
from headway.dataloader.prefetch import Prefetcher
from headway.dataloader.stream import check
from headway.dataloader.trouble import printable

_ADOPT_PERIOD_S = 0.5  # a predecessor may still be ending when its successor starts


class Dataloader:
    """Handlers over a ``Prefetcher``.

    ``finish_opening`` is to be called when ``opened_fd`` is readable.
    """

    def __init__(self, prefetcher: Prefetcher) -> None:
        self.prefetcher = prefetcher
        self._opener = Opener(prefetcher)
        self.opened_fd = self._opener.done_fd

    def handlers(self) -> dict[type[Message], Handler]:
        """Message type -> handler, for ``Server``."""
        return {OpenStream: self.open, CloseStream: self.close, GetDataStatus: self.status}

    def open(self, message: OpenStream, _peer: bytes) -> StreamOpened | Later:
        """Raises what ``Prefetcher.open`` raises; it becomes the error reply."""
        check(message.spec)
        job = job_for(message.spec, message.process, self.prefetcher.streams)
        spec: StreamSpec = msgspec.structs.replace(message.spec, job=job)  # type: ignore[type-var]
        if self.prefetcher.is_open(spec):
            return _opened(self.prefetcher.open(spec))
        return self._opener.begin(spec, message.process)

    def finish_opening(self) -> None:
        """Answer the requests whose data are open by now."""
        self._opener.finish(
            lambda later, stream: later.answer(
                stream if isinstance(stream, HeadwayError) else _opened(stream)
            )
        )

    def close(self, message: CloseStream, _peer: bytes) -> StreamClosed:
        """Remove one ring."""
        self.prefetcher.close(
            message.generation,
            message.dp_rank,
            message.split,
            job=message.job,
            if_left=message.if_left,
        )
        return StreamClosed()

    def status(self, _message: GetDataStatus, _peer: bytes) -> DataStatus:
        """Every ring with its head, tail and error."""
        rows = [stream.status() for stream in self.prefetcher.streams]
        return DataStatus(
            streams=tuple(row for row in rows if row is not None),
            num_batches=self.prefetcher.num_batches,
            num_tokens=self.prefetcher.num_tokens,
            opening=self._opener.waits(),
        )

    def facts(self) -> State:
        """For ``Description.state``."""
        return {
            "shm_dir": str(self.prefetcher.shm_dir),
            "streams": len(self.prefetcher.streams),
            "batches": self.prefetcher.num_batches,
        }


def _opened(stream: Stream) -> StreamOpened:
    spec = stream.spec
    return StreamOpened(path=str(stream.writer.path), fingerprint=spec.fingerprint, job=spec.job)


def metrics(prefetcher: Prefetcher) -> Metrics:
    """What a daemon exports."""

    def counted(name: str, text: str, read: Callable[[], float]) -> Metric:
        return Metric(f"headway_dataloader_{name}", text, read, is_counter=True)

    return Metrics(
        counted("batches", "Batches put into rings", lambda: prefetcher.num_batches),
        counted("tokens", "Tokens put into rings", lambda: prefetcher.num_tokens),
        counted(
            "adopted_rings", "Rings taken over from a predecessor", lambda: prefetcher.num_adopted
        ),
        Metric(
            "headway_dataloader_open_rings", "Rings being filled", lambda: len(prefetcher.streams)
        ),
    )


def serve(
    *,
    endpoint: str,
    shm_dir: Path,
    executor: str | None = None,
    run_id: str = "",
    metrics_port: int | None = None,
    keep_rings: bool | None = None,
) -> int:
    """Serve until SIGTERM or ``Drain``; returns the exit code.

    ``executor`` receives the beats. ``keep_rings``: keep rings at a clean end, so that a successor
    adopts them; by default only under an executor, which removes them with its node. A killed
    daemon always leaves them. ``metrics_port`` in use ends only a daemon without an executor.

    Raises:
        InputError: the endpoint or the folder cannot be used.
    """
    prefetcher = Prefetcher(_folder(shm_dir))
    loader = Dataloader(prefetcher)
    server = Server(endpoint, loader.handlers())
    beat = (
        None
        if executor is None
        # Passes, not batches: a hanging thread is a lack of progress, full rings are not.
        else Beat(endpoint=executor, progress=lambda: prefetcher.num_turns)
    )
    try:
        service = Service(
            "dataloader",
            server,
            beat=beat,
            metrics_port=metrics_port,
            describe=loader.facts,
            run_id=run_id or None,
        )
    except BaseException:
        server.close()
        raise
    service.metrics.register(metrics(prefetcher))
    service.every(_ADOPT_PERIOD_S, prefetcher.adopt)
    service.watch(loader.opened_fd, loader.finish_opening)
    prefetcher.adopt()
    prefetcher.start()
    keep = executor is not None if keep_rings is None else keep_rings
    try:
        return service.run()
    finally:
        prefetcher.stop(unlink=not keep)
        if not keep and prefetcher.shm_dir.is_relative_to(shm_root()):
            with contextlib.suppress(OSError):  # the folder holds rings of another daemon
                prefetcher.shm_dir.rmdir()


def _folder(path: Path) -> Path:
    path = path.absolute()
    if printable(str(path)) != str(path):
        raise InputError(
            f"the path {printable(str(path))} is not UTF-8 and cannot be sent in a message",
            remedy="choose another --shm-dir",
        )
    if path.is_relative_to(shm_root()):
        return private_folder(path, up_to=shm_root())
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot create {path}: {error.strerror}", remedy="choose another --shm-dir"
        ) from error
    return path
