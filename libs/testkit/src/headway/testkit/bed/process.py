"""A process that was started on a node, followed from the host."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path


class Process:
    """Like ``subprocess.Popen``, but a child of the node's process 1."""

    def __init__(self, argv: Sequence[str], pidfd: int, exit_code: Callable[[], int]) -> None:
        """``exit_code`` asks process 1 once the process has ended."""
        self.argv = list(argv)
        self.pid = pid_of(pidfd)
        """The pid, as the host counts."""
        self.returncode: int | None = None
        """The exit code as in ``subprocess``: None until ``poll`` or ``wait`` found the end."""
        self._pidfd = pidfd
        self._exit_code = exit_code

    def poll(self) -> int | None:
        """The exit code, -N after signal N; None while it runs."""
        return self._ended(0)

    def wait(self, timeout_s: float) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        code = self._ended(timeout_s)
        if code is None:
            raise subprocess.TimeoutExpired(self.argv, timeout_s)
        return code

    def _ended(self, timeout_s: float) -> int | None:
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            if poller.poll(timeout_s * 1000):
                self.returncode = self._exit_code()
                os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing if it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """SIGKILL to this process alone."""
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        if self.returncode is None:
            os.close(self._pidfd)


def pid_of(pidfd: int) -> int:
    """The pid in the caller's pid namespace; -1 once the process has been reaped."""
    text = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    found = re.search(r"(?m)^Pid:\s+(-?\d+)", text)
    assert found, text
    return int(found[1])
