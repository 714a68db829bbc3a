"""The base of every service: one thread with one poll loop.

It provides timers, signals, beats, metrics and shutdown.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import zmq
from headway.common.errors import InputError
from headway.common.log import complain, get_logger
from headway.common.node.process import ProcessId
from headway.common.paces import SERVICE_BEAT_S
from headway.common.wire.client import Client
from headway.common.wire.descriptors import raise_limit
from headway.common.wire.keys import KeyPair
from headway.common.wire.loop import Loop, Timer
from headway.common.wire.messages.service import (
    Describe,
    Description,
    Drain,
    Drained,
    Ping,
    Pong,
    ServiceBeat,
    State,
)
from headway.common.wire.metrics import Exporter, counts_collector
from headway.common.wire.server import Server
from prometheus_client import CollectorRegistry

DRAIN_PERIOD_S = 0.05
DRAIN_LIMIT_S = 30.0
EXIT_LINGER_S = 0.25  # time for the last replies; a peer that does not read cannot delay the exit
METRICS_RETRY_S = 5.0
SOCKET_LOOK_S = 1.0
"""How often a service looks whether the file of its socket is still there."""

_log = get_logger("service")


@dataclass(frozen=True, kw_only=True)
class Beat:
    """Where a service sends its beats: ``endpoint`` of the executor, every ``period_s``.

    ``progress`` returns a counter that moves only when useful work was done.
    """

    endpoint: str
    progress: Callable[[], int]
    period_s: float = SERVICE_BEAT_S
    keys: KeyPair | None = None
    server_key: bytes | None = None


class Service:
    """Runs ``server`` and whatever is registered, in the thread that calls ``run``.

    A callback that raises is logged with its traceback, counted
    (``headway_service_callback_errors_total``) and called again when next due; it does not end the
    service. It ends by ``stop``, SIGTERM, SIGINT or a ``Drain`` message, each through ``on_drain``;
    or by an exception that is not an ``Exception`` (``SystemExit``).

    Everything shares one thread, so a callback that blocks stops the beats: ``alive_seq`` does not
    change, and the next beat names the callback and its duration. ``describe`` returns the values
    of ``Description.state``. ``gather_s`` makes a service with many clients handle in one turn what
    arrives within that time.

    The process may have as many open files as the hard limit allows from then on.

    Others depend on a service with a ``beat``: it goes without metrics while ``metrics_port`` is in
    use (``serve_metrics``).

    Raises:
        InputError: the metrics port of a service without beat is in use; the beat's endpoint is
            malformed.
    """

    def __init__(
        self,
        name: str,
        server: Server | None = None,
        *,
        beat: Beat | None = None,
        metrics_port: int | None = None,
        describe: Callable[[], State] | None = None,
        run_id: str | None = None,
        drain_limit_s: float = DRAIN_LIMIT_S,
        is_patient: bool = False,
        gather_s: float = 0.0,
    ) -> None:
        raise_limit()
        self.name = name
        self.run_id = os.environ.get("HEADWAY_RUN_ID", "") if run_id is None else run_id
        self.metrics = CollectorRegistry()
        self._exporter: Exporter | None = None
        if metrics_port is not None and beat is None:
            self._exporter = Exporter(metrics_port, self.metrics)
        self._beat_client = (
            Client(beat.endpoint, keys=beat.keys, server_key=beat.server_key) if beat else None
        )
        self._metrics_retry: Timer | None = None
        self._server = server
        self._describe = describe
        self._start_ticks = ProcessId.current().start_ticks
        self._drain_limit_s, self._is_patient = drain_limit_s, is_patient
        self._drain: Callable[[], bool | None] | None = None
        self._drain_until_s: float | None = None
        self.is_signalled = False
        """Whether a signal asked this process to end, and not its own run."""
        self._exit_code = 0
        self._loop = Loop(on_stop=self._begin_drain, gather_s=gather_s)
        self.metrics.register(
            counts_collector("headway_service_callback_errors", self._loop.errors, "callback")
        )
        if server is not None:
            server.add_handlers(
                {Ping: self._ping, Describe: self._description, Drain: self._drained}, replace=False
            )
            self.metrics.register(
                counts_collector("headway_wire_messages", server.counts, "outcome")
            )
            self._loop.watch(server.socket, server.handle_ready)
            self._loop.every(SOCKET_LOOK_S, server.keep_reachable)
        self._beat = beat
        self._alive_seq = self._progress = 0
        if beat is not None:
            self._loop.every(beat.period_s, self._send_beat)
            if metrics_port is not None:
                self.serve_metrics(metrics_port)

    @property
    def metrics_port(self) -> int | None:
        """The port of the Prometheus exporter on loopback, None if there is none."""
        return self._exporter.port if self._exporter is not None else None

    def serve_metrics(self, port: int) -> None:
        """Export metrics on ``port`` as soon as it is free; in the thread that calls ``run``.

        For services that others depend on: a port in use costs the metrics and never the service.
        It is logged once, and tried again every ``METRICS_RETRY_S``. An earlier port is given up.
        """
        self.end_metrics()

        def open_port() -> None:
            try:
                self._exporter = Exporter(port, self.metrics)
            except InputError as error:
                if self._metrics_retry is None:
                    complain(
                        _log.warning, "no metrics for now", service=self.name, reason=str(error)
                    )
                    self._metrics_retry = self._loop.every(METRICS_RETRY_S, open_port)
            else:
                self._end_metrics_retry()

        open_port()

    def end_metrics(self) -> None:
        """Export metrics no longer."""
        self._end_metrics_retry()
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.close()

    def _end_metrics_retry(self) -> None:
        if self._metrics_retry is not None:
            self._metrics_retry.cancel()
        self._metrics_retry = None

    @property
    def errors(self) -> dict[str, int]:
        """How often each callback has raised."""
        return dict(self._loop.errors)

    def every(self, period_s: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` every ``period_s``, first at the loop's start; a busy loop skips turns.

        Raises:
            ValueError: ``period_s`` is below 1 ms.
        """
        return self._loop.every(period_s, callback)

    def after(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` once, ``delay_s`` from now."""
        return self._loop.after(delay_s, callback)

    def watch(self, source: int | zmq.Socket[Any], callback: Callable[[], object]) -> None:
        """Call ``callback`` whenever ``source`` (file descriptor or ZeroMQ socket) can be read.

        The callback reads what is there, or calls ``unwatch`` at the end of the stream. After an
        exception its source rests for 1 s, so that a broken one cannot spin the loop.
        """
        self._loop.watch(source, callback)

    def unwatch(self, source: int | zmq.Socket[Any]) -> None:
        """Forget ``source``; to be called before it is closed. An unknown source is ignored."""
        self._loop.unwatch(source)

    def on_drain(self, callback: Callable[[], bool | None]) -> None:
        """Set the callback that finishes open work before the exit.

        It is called every 50 ms until it returns True.

        Beats and messages continue meanwhile. After ``drain_limit_s``, or at a second signal unless
        the service ``is_patient``, it exits with code 1 without finishing.
        """
        self._drain = callback

    def stop(self) -> None:
        """End ``run``, through ``on_drain``. From any thread."""
        self._loop.stop()

    def run(self) -> int:
        """Serve until stopped, then close everything; returns 0, or 1 after an unfinished drain."""
        complain(
            _log.info,
            "service is up",
            service=self.name,
            endpoint=self._server.endpoint if self._server else None,
        )
        try:
            self._loop.run()
        finally:
            self.close()
        complain(_log.info, "service ends", service=self.name, code=self._exit_code)
        return self._exit_code

    def close(self) -> None:
        """Close everything including the server.

        ``run`` does so before it returns. May be repeated.
        """
        with contextlib.ExitStack() as stack:  # a failure must not keep the others open
            stack.callback(self._loop.close)
            if self._server is not None:
                stack.callback(self._server.close, linger_s=EXIT_LINGER_S)
            if self._beat_client is not None:
                stack.callback(self._beat_client.close)
            stack.callback(self.end_metrics)

    def _begin_drain(self, is_signal: bool) -> None:
        """Start the drain at the first request to end.

        Another signal (a second Ctrl-C) cuts it short.
        """
        self.is_signalled |= is_signal
        if self._drain_until_s is not None:
            if is_signal and not self._is_patient:
                self._exit_code = 1
                self._loop.end()
            return None
        self._drain_until_s = time.monotonic() + self._drain_limit_s
        self._loop.every(DRAIN_PERIOD_S, self._continue_drain)
        return self._continue_drain()

    def _continue_drain(self) -> None:
        assert self._drain_until_s is not None
        if self._drain is None or self._loop.guard(self._drain) is not False:
            self._loop.end()
        elif time.monotonic() >= self._drain_until_s:
            limit_s = self._drain_limit_s
            complain(_log.error, "drain not finished in time", service=self.name, limit_s=limit_s)
            self._exit_code = 1
            self._loop.end()

    def _ping(self, _message: Ping, _peer: bytes) -> Pong:
        return Pong(
            name=self.name,
            pid=os.getpid(),
            start_ticks=self._start_ticks,
            run_id=self.run_id,
        )

    def _description(self, _message: Describe, _peer: bytes) -> Description:
        return Description(
            name=self.name,
            version=_version(),
            messages=self._server.messages if self._server else [],
            state=self._describe() if self._describe else {},
        )

    def _drained(self, _message: Drain, _peer: bytes) -> Drained:
        if self._drain_until_s is None:
            self._begin_drain(False)
        return Drained(done=self._loop.is_ending)

    def _send_beat(self) -> None:
        assert self._beat is not None and self._beat_client is not None
        self._alive_seq += 1
        progress = self._loop.guard(self._beat.progress)
        if isinstance(
            progress, int
        ):  # otherwise it failed and was counted, which does not end the loop
            self._progress = progress
        beat = ServiceBeat(
            name=self.name,
            pid=os.getpid(),
            start_ticks=self._start_ticks,
            alive_seq=self._alive_seq,
            progress=self._progress,
        )
        self._beat_client.notify(beat)


def _version() -> str:
    try:
        return version("headway-common")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"
