"""Runs blocking calls on threads of their own, so that the main thread can leave a stuck transport.

No torch call frees a thread that waits inside gloo for a rank that is stopped or has left. So every
blocking call is made by a daemon thread of a channel, and the main thread waits in a queue that
an abort also feeds: it returns at once, whatever the transport does. A thread that stays stuck is
abandoned and ends at the transport's own timeout.

Collectives need no channel: gloo queues them for its own thread, which completes the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from headway.common.log import get_logger
from headway.common.node.group_table import NO_LINE, GroupLine
from headway.trainer.comm.interface import Aborted, PeerLost

T = TypeVar("T")
_Jobs: TypeAlias = "SimpleQueue[tuple[Callable[[], Any], bool, Call[Any]] | None]"
_Started: TypeAlias = "SimpleQueue[tuple[Work, Call[Any]] | None]"

log = get_logger("channel")


class Work(Protocol):
    """A running operation of a transport, such as ``torch.distributed.Work``."""

    def wait(self) -> object:
        """Block until the operation ended; raises if it failed."""


class Call(Generic[T]):
    """A call on a channel, or the ``Ticket`` of a collective. Only one thread may wait for it.

    ``line`` counts what its transport has finished; ``collective`` is its name in flight records.
    """

    __slots__ = ("_box", "_group", "_line", "_settled", "collective")

    def __init__(self, group: Channels, line: GroupLine = NO_LINE, collective: int = 0) -> None:
        self._box: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._group, self._line, self.collective = group, line, collective
        self._settled = False

    def done(self) -> bool:
        """The call has returned, failed or was aborted."""
        return self._settled or not self._box.empty()

    def wait(self) -> None:
        """Block until the call returned, failed or was aborted; a second wait returns at once."""
        if not self._settled:
            self.result()

    def result(self) -> T:
        """The call's return value; may be read once.

        Raises:
            Aborted: the generation was fenced, even if the call has finished since.
            PeerLost: the transport failed. RuntimeError: anything else went wrong.
        """
        if self._box.empty():
            with self._group.waiting:
                value, error = self._box.get()
        else:
            value, error = self._box.get()
        self._group._forget(self)
        if self._group.aborted:
            raise Aborted
        if error is not None:
            try:
                raise error
            finally:
                # exception -> traceback -> this frame -> exception would keep the generation's
                # groups alive until the next full garbage collection
                del error
        self._settled = True
        return value  # type: ignore[no-any-return]

    def _settle(self, value: object, error: BaseException | None) -> None:
        self._box.put((value, error))


class Channel:
    """Calls of one kind, started in the order submitted.

    Operations are started on one thread and waited for on another, so any number of them is under
    way at once. The caller's own thread would not do: starting a message costs gloo microseconds,
    also towards a stopped peer or with full socket buffers, but it takes the lock of the
    connection, which gloo's thread holds for as long as data arrive (24 ms while messages of 4 MiB
    stream in, 120 ms with 64 MiB).
    """

    def __init__(self, group: Channels, name: str) -> None:
        self._group = group
        self._jobs: _Jobs = SimpleQueue()
        _thread(name, _serve, self._jobs, name)

    def call(self, fn: Callable[[], T]) -> Call[T]:
        """Run ``fn`` on the channel's first thread; never blocks the caller.

        ``fn`` may block, and what is submitted later waits for it.
        """
        return self._put(fn, False)

    def launch(
        self, start: Callable[[], Work], line: GroupLine = NO_LINE, collective: int = 0
    ) -> Call[object]:
        """Start an operation on the channel's first thread; never blocks the caller.

        The second thread waits for the operations, in the order started.
        """
        return self._put(start, True, line, collective)

    def _put(
        self,
        fn: Callable[[], Any],
        is_work: bool,
        line: GroupLine = NO_LINE,
        collective: int = 0,
    ) -> Call[Any]:
        call = self._group._new_call(line, collective)
        self._jobs.put((fn, is_work, call))
        return call

    def _close(self) -> None:
        self._jobs.put(None)


class Channels:
    """The channels of one generation: opened by name, aborted and closed together.

    Args:
        waiting: entered while the main thread waits for other ranks, such as
            ``FlightWriter.waiting``.
    """

    def __init__(self, waiting: AbstractContextManager[None] | None = None) -> None:
        self.waiting: AbstractContextManager[None] = waiting or nullcontext()
        self._channels: dict[str, Channel] = {}
        self._open: set[Call[Any]] = set()
        self._aborted = threading.Event()
        self._on_abort: list[Callable[[], object]] = []

    @property
    def aborted(self) -> bool:
        """Whether the generation was fenced; then every wait raises ``Aborted``."""
        return self._aborted.is_set()

    def open(self, name: str) -> Channel:
        """The channel called ``name``, made at its first use."""
        self.check()
        if name not in self._channels:
            self._channels[name] = Channel(self, name)
        return self._channels[name]

    def check(self) -> None:
        """Raise ``Aborted`` if the generation was fenced."""
        if self._aborted.is_set():
            raise Aborted

    def abort(self) -> None:
        """Make every waiting call raise ``Aborted``. Any thread may call this, repeatedly.

        An action of ``on_abort`` that fails is logged, and the others run.
        """
        self._aborted.set()
        for call in self._open.copy():
            call._settle(None, None)
        while self._on_abort:
            action = self._on_abort.pop()
            try:
                action()
            except Exception as error:
                log.error("an action of an abort failed", error=repr(error))

    def on_abort(self, fn: Callable[[], object]) -> None:
        """Call ``fn`` once, on the aborting thread, if the generation is fenced."""
        self._on_abort.append(fn)

    def watch(
        self, start: Callable[[], Any], line: GroupLine = NO_LINE, collective: int = 0
    ) -> Call[object]:
        """Start an operation on the calling thread, without a channel.

        Its own completion finishes the call, which saves two thread switches per collective. It is
        for operations that are only queued when they start and that offer a
        ``torch.futures.Future``.
        """
        call = self._new_call(line, collective)
        try:
            start().get_future().add_done_callback(
                lambda future: _settle_with(call, lambda: _check(future), _lost)
            )
        except BaseException:
            line.leave(is_broken=True)
            self._forget(call)
            raise
        return call

    def close(self) -> None:
        """End the threads that are not stuck; never blocks.

        The others end when their operation does.
        """
        self._aborted.set()
        for channel in self._channels.values():
            channel._close()
        self._channels.clear()
        self._on_abort.clear()
        self._open.clear()  # a call that is no longer waited for refers back to this object

    def _new_call(self, line: GroupLine = NO_LINE, collective: int = 0) -> Call[Any]:
        call: Call[Any] = Call(self, line, collective)
        self._open.add(call)
        # checked after the add: an earlier abort did not see this call, a later one does
        if self._aborted.is_set():
            self._open.discard(call)
            raise Aborted
        return call

    def _forget(self, call: Call[Any]) -> None:
        self._open.discard(call)


def _serve(jobs: _Jobs, name: str) -> None:
    """Start what is submitted, and hand operations to a second thread that waits for them."""
    started: _Started | None = None
    while (job := jobs.get()) is not None:
        start, is_work, call = job
        del job
        if not is_work:
            _settle_with(call, start, _without_frames)
        else:
            if started is None:
                started = SimpleQueue()
                _thread(f"{name}-wait", _finish, started)
            try:
                started.put((start(), call))
            except BaseException as error:
                call._line.leave(is_broken=True)
                call._settle(None, _lost(error))
        del start, call
    if started is not None:
        started.put(None)


def _finish(started: _Started) -> None:
    while (item := started.get()) is not None:
        work, call = item
        _settle_with(call, work.wait, _lost)
        del item, work, call


def _thread(name: str, target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, name=f"channel-{name}", daemon=True).start()


def _settle_with(
    call: Call[Any], fn: Callable[[], Any], translate: Callable[[BaseException], BaseException]
) -> None:
    try:
        value = fn()
    except BaseException as error:
        call._line.leave(is_broken=True)
        call._settle(None, translate(error))
    else:
        call._line.leave()
        call._settle(value, None)


def _check(future: Any) -> None:
    """Raise what it failed with; its value, a list of tensors, would live until the wait."""
    future.value()


def _lost(error: BaseException) -> BaseException:
    """Wrap what a transport's operation raised.

    torch has no error type for a lost peer, but an operation that was started with valid tensors
    fails only because of its connection.
    """
    if isinstance(error, RuntimeError):
        return PeerLost(f"{type(error).__name__}: {error}")
    return _without_frames(error)


def _without_frames(error: BaseException) -> BaseException:
    """An error with the same text that holds no frame of this thread, hence no group."""
    if isinstance(error, Aborted):
        return Aborted()
    if isinstance(error, PeerLost):
        return PeerLost(str(error))
    return RuntimeError(f"{type(error).__name__}: {error}")
