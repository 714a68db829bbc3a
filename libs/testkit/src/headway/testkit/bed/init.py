"""The first processes of a node: one makes the namespaces, the other one is process 1 in them.

Process 1 starts what the owner of the bed asks for, reaps every orphan and ends, with all that
runs on the node, when the owner has ended in whatever way. Imports nothing heavy: it starts at
each boot.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from headway.testkit.bed import kernel
from headway.testkit.bed.channel import Channel
from headway.testkit.bed.view import View, show

_NAMESPACES = (
    kernel.NEW_MOUNTS | kernel.NEW_HOST_NAME | kernel.NEW_IPC | kernel.NEW_PIDS | kernel.NEW_NETWORK
)
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NOT_STARTED = 127


def main() -> None:
    """``python -m headway.testkit.bed.init FD``: ``FD`` is the channel to the owner."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    os.set_inheritable(channel.fileno(), False)
    order, fds = channel.receive()
    kernel.unshare(_NAMESPACES | (kernel.NEW_TIME if order["clock_offsets"] else 0))
    for clock, offset_ns in order["clock_offsets"].items():
        seconds, rest_ns = divmod(offset_ns, 10**9)
        Path("/proc/self/timens_offsets").write_text(f"{clock} {seconds} {rest_ns}\n")
    if os.fork():
        channel.close()
        os.wait()
        return
    kernel.die_with_parent()
    boot_id = _prepare(order)
    channel.send({"boot_id": boot_id}, [os.pidfd_open(os.getpid())])
    _Init(channel, order["group"], fds).serve()


def _prepare(order: dict[str, Any]) -> str:
    """Host name, files and sysctls of the node; returns its new boot id."""
    socket.sethostname(order["name"])
    boot_id = Path("/proc/sys/kernel/random/uuid").read_text()
    show(View(**order["view"]), {**order["files"], _BOOT_ID: boot_id})
    for name in ("all", "default"):  # cuts know IPv4 only
        switch = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
        if switch.exists():
            switch.write_text("1")
    return boot_id.strip()


class _Init:
    """Process 1: requests of the owner in, processes and exit codes out."""

    def __init__(self, channel: Channel, group: dict[str, str], fds: list[int]) -> None:
        """``fds`` are of the group of all its processes: see ``freezer.Group.fds``; or none."""
        self._channel = channel
        self._group, self._fds = group, fds
        self._codes: dict[int, int | None] = {}
        """pid of each process that was asked for -> exit code once it has ended."""

    def serve(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([self._channel.fileno(), wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, 4096)
                self._reap(os.WNOHANG)
            if self._channel.fileno() in ready:
                try:
                    self._answer(*self._channel.receive())
                except ConnectionError:
                    self._end()

    def _answer(self, request: dict[str, Any], fds: list[int]) -> None:
        if "start" in request:
            self._start(request, fds)
        else:
            pid = request["code"]
            while self._codes[pid] is None:
                self._reap(0)
            self._channel.send({"code": self._codes.pop(pid)})

    def _reap(self, options: int) -> None:
        """Collect one process that has ended; with WNOHANG all there are."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if pid in self._codes:
                self._codes[pid] = os.waitstatus_to_exitcode(status)
            if not pid or not options:
                return

    def _start(self, request: dict[str, Any], fds: list[int]) -> None:
        error_read, error_write = os.pipe()
        pid = os.fork()
        if not pid:
            self._become(request, fds, error_write)
        for fd in (*fds, error_write):
            os.close(fd)
        with os.fdopen(error_read) as errors:
            error = errors.read()  # ends with the exec
        if error:
            os.waitpid(pid, 0)
            self._channel.send({"error": error})
            return
        self._codes[pid] = None
        pidfd = os.pidfd_open(pid)
        self._channel.send({"pid": pid}, [pidfd])
        os.close(pidfd)

    def _become(self, request: dict[str, Any], fds: list[int], error_write: int) -> None:
        """In the child: never returns."""
        try:
            signal.set_wakeup_fd(-1)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.setsid()
            if self._fds:
                os.write(self._fds[0], b"0")  # this process
            os.chdir(request["cwd"])
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
            os.execvpe(request["start"][0], request["start"], request["env"])
        except BaseException as error:
            os.write(error_write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(_NOT_STARTED)

    def _end(self) -> None:
        """The owner has ended: leave nothing behind, frozen processes included."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        if self._fds:
            os.write(self._fds[1], self._group["thaw"].encode())
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        if self._fds:
            folder = Path(self._group["folder"])
            with contextlib.suppress(OSError):  # the last node removes the folder of the bed
                os.rmdir(folder, dir_fd=self._fds[2])
                os.rmdir(folder.parent, dir_fd=self._fds[2])
        os._exit(0)


if __name__ == "__main__":
    main()
