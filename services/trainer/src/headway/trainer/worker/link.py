"""A worker's connection to its executor: one thread that owns the socket and sends beats."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from headway.common.wire.client import Client
from headway.common.wire.message import Message
from headway.common.wire.messages.executor import (
    Evaluation,
    Sample,
    StepMetrics,
    WorkerBeat,
    WorkerState,
)
from headway.common.wire.messages.worker import (
    Abort,
    Acknowledged,
    Assign,
    Quit,
    Steer,
    StoreAddress,
)

BEAT_S = 0.5
LONGEST_GAP_S = 1.0
"""Two beats: no more of the time between two looks at the socket counts as silence."""
MAX_UNSTORED = 20_000
"""About 10 MB; the oldest are dropped first."""
MAX_KEPT = 1024
"""Steps that are kept of what another rank reports; the oldest are dropped first."""


@dataclass
class WorkerStatus:
    """What the executor sees of this worker; see ``WorkerBeat``."""

    status: WorkerState = "idle"
    generation: int = -1
    rank: int = -1
    step: int = 0
    applied: int = 0
    paused: bool = False
    evaluating: bool = False
    restored_bytes: int = 0
    memory_bytes: int = 0
    memory_predicted: int = 0


class Silence:
    """How long the executor has sent nothing while this process ran and could receive it.

    A frozen process wakes up with the beats of its executor still on their way to the socket.
    """

    def __init__(self, now: float) -> None:
        self._looked_at, self._silent_s = now, 0.0

    def look(self, now: float, *, has_received: bool) -> float:
        """Take in one look at the socket; returns the seconds of silence."""
        gap_s = min(now - self._looked_at, LONGEST_GAP_S)
        self._looked_at, self._silent_s = now, 0.0 if has_received else self._silent_s + gap_s
        return self._silent_s


class Link:
    """The connection of a worker to its executor.

    ``send`` may be called from any thread; ``on_message`` runs on the link's own thread and must
    not block, and so does ``on_silence``, which gets the seconds of ``Silence``.

    The socket is a DEALER over ``ipc``; it reconnects to a restarted executor automatically. Beats
    sent meanwhile are dropped, since the next one replaces them; everything else is queued here, at
    most 4,096 notes, dropping the oldest. What the driver stores is kept until it has done so, and
    sent again to a restarted executor.

    The rank that reports the run's metrics may die after its last step was sealed: then nobody
    repeats that step, and its metrics are lost, as are older ones on a machine that was cut off.
    So other ranks ``keep`` theirs until the driver has stored them, and report them once the next
    generation has its state.
    """

    def __init__(
        self,
        endpoint: str,
        name: str,
        beat: Callable[[], WorkerBeat],
        on_message: Callable[[Message], None],
        on_silence: Callable[[float], None],
    ) -> None:
        self._endpoint, self._name = endpoint, name
        self._beat, self._on_message, self._on_silence = beat, on_message, on_silence
        self._outbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._unsent: deque[Message] = deque(maxlen=4096)
        self._unstored: deque[StepMetrics | Evaluation | Sample] = deque(maxlen=MAX_UNSTORED)
        self._kept: deque[StepMetrics] = deque(maxlen=MAX_KEPT)
        self._kept_lock = threading.Lock()
        self._executor = 0
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="link", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Queue a note to the executor."""
        self._outbox.put(message)
        os.eventfd_write(self._wake, 1)

    def keep(self, metrics: StepMetrics) -> None:
        """Keep what another rank reports, until the driver has stored it."""
        with self._kept_lock:
            self._kept.append(metrics)

    def report_kept(self, step: int) -> None:
        """Report what is still kept of the steps before ``step``; later ones are repeated."""
        with self._kept_lock:
            kept = list(self._kept)
            self._kept.clear()
        for metrics in kept:
            if metrics.step < step:
                self.send(metrics)

    def beat_now(self) -> None:
        """Send a beat at once because something changed."""
        self.send(self._beat())

    def close(self) -> None:
        """Send what is queued and end the thread."""
        self._closed.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join(timeout=2.0)

    def _serve(self) -> None:
        client = Client(
            self._endpoint,
            identity=self._name.encode(),
            accept=(Assign, StoreAddress, Abort, Steer, Quit, Acknowledged),
        )
        poller = zmq.Poller()
        poller.register(client.socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        silence = Silence(time.monotonic())
        next_beat = 0.0
        while not self._closed.is_set():
            now = time.monotonic()
            if now >= next_beat:
                client.notify(self._beat())
                next_beat = now + BEAT_S
            ready = dict(poller.poll(max(1, int(1000 * (next_beat - now)))))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            messages = client.receive() if client.socket in ready else []
            for message in messages:
                if isinstance(message, Acknowledged):
                    self._acknowledged(message)
                else:
                    self._on_message(message)
            # only now: what arrived meanwhile, such as an assignment, ends the silence
            self._on_silence(silence.look(time.monotonic(), has_received=bool(messages)))
            self._flush(client)
        self._flush(client)
        client.socket.setsockopt(zmq.LINGER, 500)
        client.close()

    def _acknowledged(self, message: Acknowledged) -> None:
        """Discard what is stored; a new executor gets again what the previous one had received."""
        with self._kept_lock:
            while self._kept and _number(self._kept[0]) <= message.measured:
                self._kept.popleft()
        newest = -1
        for index, kept in enumerate(self._unstored):
            if isinstance(kept, StepMetrics) and _number(kept) <= message.stored:
                newest = index
        for _ in range(newest + 1):
            self._unstored.popleft()
        if self._executor and message.incarnation != self._executor:
            waiting = {id(unsent) for unsent in self._unsent}
            self._unsent.extend(kept for kept in self._unstored if id(kept) not in waiting)
        self._executor = message.incarnation

    def _flush(self, client: Client) -> None:
        while not self._outbox.empty():
            message = self._outbox.get()
            self._unsent.append(message)
            if isinstance(message, StepMetrics | Evaluation | Sample):
                self._unstored.append(message)
        while self._unsent:
            if not client.notify(self._unsent[0]) and not isinstance(self._unsent[0], WorkerBeat):
                return  # no executor is connected: tried again with the next beat
            self._unsent.popleft()


def _number(metrics: StepMetrics) -> tuple[int, int]:
    return (metrics.generation, metrics.step)
