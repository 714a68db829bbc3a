"""The process around ``Core``: it waits for signals, the executor's end and its beats."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import time

from headway.common.decide import Event, Log
from headway.common.errors import HeadwayError
from headway.common.node.process import GONE
from headway.launch.init import core
from headway.launch.init.executor import Executor, Place
from headway.launch.init.log import say
from headway.launch.init.signals import on_socket, received

LOOK_S = 0.25
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_CHILD_SUBREAPER = 36


class Supervisor:
    """The process of an init; ``run`` returns its exit code.

    There is one per process: it takes the signals and reaps all children.
    """

    def __init__(self, place: Place) -> None:
        self._place, self._core = place, core.Core()
        self._executor: Executor | None = None
        self._poll = select.poll()
        self._code: int | None = None

    def run(self) -> int:
        """Keep the node's executor until it ends as asked, or SIGTERM or SIGINT comes."""
        _become_subreaper()
        with on_socket(*_END_SIGNALS, signal.SIGHUP, signal.SIGCHLD) as source:
            self._poll.register(source, select.POLLIN)
            while self._code is None:
                self._turn(source)
                if self._code is None:
                    self._poll.poll(LOOK_S * 1000)
        return self._code

    def _turn(self, source: socket.socket) -> None:
        for number in received(source):
            if number in _END_SIGNALS:
                self._handle(core.StopRequested(signal.Signals(number).name))
        # Beats come before the look: after a stall of both, the executor's report counts first.
        executor = self._executor
        if executor is not None:
            heard = executor.listen()
            if heard.is_beating:
                self._handle(core.BeatReceived())
            if not heard.is_open:
                self._forget(executor, beats_only=True)
        self._reap()
        if executor is None:
            self._handle(core.Looked())
        elif (state := executor.state()) == GONE:
            self._end(executor)
        else:
            self._handle(core.Looked(state))

    def _reap(self) -> None:
        """Collect every child that has ended, of the executor's too: orphans are passed to us."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if self._executor is not None and pid == self._executor.process.pid:
                    self._executor.code = os.waitstatus_to_exitcode(status)

    def _end(self, executor: Executor) -> None:
        self._forget(executor)
        self._reap()  # it may have ended since the last time
        executor.listen()  # whether it said that it ends
        event = core.Ended(executor.code, executor.last_line())
        executor.close()
        self._executor = None
        self._handle(event)

    def _handle(self, event: Event) -> None:
        for action in self._core.handle(event, time.monotonic()):
            match action:
                case Log():
                    say(action.level, action.event, node=self._place.node, **action.fields)
                case core.Start():
                    self._handle(self._start())
                case core.Kill() if self._executor is not None:
                    self._executor.send(signal.SIGKILL)
                case core.ForwardSigterm() if self._executor is not None:
                    self._executor.send(signal.SIGTERM)
                case core.Exit():
                    self._code = action.code
                case _:
                    pass

    def _start(self) -> core.Started | core.NotStarted:
        try:
            found = Executor.find(self._place)
            is_adopted = found is not None
            executor = found or Executor.start(self._place, self._core.ended_for)
        except (HeadwayError, OSError) as error:
            is_gone = not self._place.cluster.exists()
            return core.NotStarted(str(error), is_gone=is_gone)
        self._executor = executor
        self._poll.register(executor.pidfd, select.POLLIN)
        if executor.beats is not None:
            self._poll.register(executor.beats.fd, select.POLLIN)
        return core.Started(
            executor.process,
            is_adopted=is_adopted,
            age_s=executor.process.age_s() if is_adopted else 0.0,
            sends_beats=executor.beats is not None,
        )

    def _forget(self, executor: Executor, *, beats_only: bool = False) -> None:
        """Wait no longer for its beats, and its end."""
        fds = [executor.beats.fd] if executor.beats is not None else []
        for fd in fds if beats_only else [*fds, executor.pidfd]:
            with contextlib.suppress(KeyError):  # its pipe has been closed before
                self._poll.unregister(fd)


def _become_subreaper() -> None:
    """Have orphans of the executor passed to this process instead of the system's init."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        say("warning", "orphans will not be reaped here", reason=reason)
