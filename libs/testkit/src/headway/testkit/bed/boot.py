"""One boot of a node, from power on to power off: its first process, seen from the host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.common.errors import HeadwayError
from headway.common.node.process import ProcessId
from headway.common.node.testing import child_environment
from headway.testkit.bed.channel import Channel
from headway.testkit.bed.freezer import Group
from headway.testkit.bed.process import Process, pid_of

_LIMIT_S = 30.0


class Boot:
    """Process 1 of a node and the channel to it. ``finish`` returns when the node is up."""

    def __init__(self, order: Mapping[str, Any], group: Group | None, console: Path) -> None:
        """Power on.

        Args:
            order: name, view, files and clock_offsets, see ``init``.
            group: of the node's processes, to freeze them.
            console: where process 1 reports what keeps it from starting.
        """
        self._console = console
        self._lock = threading.Lock()
        self._pidfd = -1
        self._channel, far = Channel.pair(timeout_s=_LIMIT_S)
        with console.open("ab") as log:
            self._starter = subprocess.Popen(
                [sys.executable, "-m", "headway.testkit.bed.init", str(far.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=child_environment(),
                pass_fds=[far.fileno()],
                start_new_session=True,
            )
        far.close()
        with contextlib.ExitStack() as stack:
            fds = stack.enter_context(group.fds()) if group else []
            self._channel.send({**order, "group": group.order if group else {}}, fds)

    def finish(self) -> None:
        """Wait until process 1 serves. Raises HeadwayError with its last lines if it has failed."""
        try:
            reply, (self._pidfd,) = self._channel.receive()
        except ConnectionError:
            self._starter.wait(_LIMIT_S)
            lines = self._console.read_text(errors="replace").splitlines()
            raise HeadwayError("the node did not start: " + " | ".join(lines[-3:])) from None
        self.pid = pid_of(self._pidfd)
        """The pid of process 1, as the host counts."""
        self._namespace = Path(f"/proc/{self.pid}/ns/pid").readlink()
        self.boot_id: str = reply["boot_id"]

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, fds: Sequence[int]
    ) -> Process:
        """A process with ``fds`` as its descriptors 0, 1, 2. Raises HeadwayError if it cannot."""
        request = {"start": list(argv), "env": dict(env), "cwd": cwd}
        reply, received = self._ask(request, fds)
        if "error" in reply:
            raise HeadwayError(f"{argv[0]} was not started: {reply['error']}")
        return Process(argv, received[0], lambda: self._exit_code(reply["pid"]))

    def _exit_code(self, pid: int) -> int:
        try:
            reply, _ = self._ask({"code": pid})
        except (ConnectionError, OSError):
            return -signal.SIGKILL  # it fell with the node
        return int(reply["code"])

    def _ask(
        self, request: dict[str, Any], fds: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            self._channel.send(request, fds)
            return self._channel.receive()

    def processes(self) -> list[ProcessId]:
        """All processes of the node but process 1, zombies included."""
        own = self._namespace  # process 1 may have ended, and others still be ending
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                is_here = name.isdigit() and Path(f"/proc/{name}/ns/pid").readlink() == own
                if is_here and int(name) != self.pid and (one := ProcessId.of(int(name))):
                    found.append(one)
        return found

    def kill(self) -> None:
        """SIGKILL to process 1, with which all others fall."""
        if self._pidfd < 0:  # still starting
            with contextlib.suppress(HeadwayError):
                self.finish()
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> None:
        """Return once nothing of the node runs, after ``kill``.

        Raises subprocess.TimeoutExpired.
        """
        self._starter.wait(_LIMIT_S)
        self._channel.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
