"""Identifies a process reliably, checks whether it is alive, and starts one.

A pid is reused; a pid together with its start time (field 22 of /proc/PID/stat, clock ticks since
boot) is not. Everything here takes a ``ProcessId`` and signals through a pidfd, so it never
reaches another process. Only the standard library is imported, since ``headway.launch.init`` must
start fast and stay small.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import HeadwayError, InputError

PRIVATE_UMASK = 0o077
ENV_ENDS_WITH = "HEADWAY_ENDS_WITH"
"""Pid of the parent with which a process is to end."""
GONE = "X"
DEAD = frozenset({GONE, "Z", "x"})
"""States of a process that will never run again."""

_PR_SET_PDEATHSIG = 1
_DISK_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


def kernel_state(pid: int) -> tuple[str, int] | None:
    """State letter as in proc_pid_stat(5), and start ticks; None if there is no such process."""
    fields = kernel_fields(pid)
    return None if fields is None else (fields[0].decode(), int(fields[19]))


def kernel_fields(pid: int) -> list[bytes] | None:
    """The fields of proc_pid_stat(5) from the state on; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - a Path costs as much as the read
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may itself hold spaces and parentheses.
    return text[text.rindex(b")") + 2 :].split()


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A unique process since boot: ``start_ticks`` is its start time in clock ticks since boot."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has ``pid`` now, zombies included; None if there is none."""
        found = kernel_state(pid)
        return None if found is None else cls(pid, found[1])

    @classmethod
    def current(cls) -> ProcessId:
        """This process. Read each time, because a forked child is another process."""
        found = cls.of(os.getpid())
        if found is None:
            raise HeadwayError("/proc has no entry for this process", remedy="mount /proc")
        return found

    def state(self) -> str:
        """R running, S sleeping, D in the kernel, T stopped, t traced, Z zombie, ``GONE``.

        State t means that a debugger (py-spy, gdb, strace) inspects it; that does
        not count as stopped.
        """
        found = kernel_state(self.pid) if self.pid > 0 else None
        if found is None or found[1] != self.start_ticks:
            return GONE
        return found[0]

    def is_terminating(self) -> bool:
        """Whether it will never run its own code again: gone, or frozen with a pending SIGKILL.

        A process in a frozen cgroup (v1), or stuck in the kernel, takes the signal only later.
        """
        if not self.alive():
            return True
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return not self.alive()
        pending = [int(line.split()[1], 16) for line in lines if line[:7] in ("SigPnd:", "ShdPnd:")]
        return any(mask >> (signal.SIGKILL - 1) & 1 for mask in pending)

    def age_s(self) -> float:
        """Seconds since it was started, to a clock tick; of a dead process too."""
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_ticks / ticks_per_s

    def alive(self) -> bool:
        """Whether it exists and has not ended.

        A zombie is dead, a stopped or frozen process is alive.
        """
        return self.state() not in DEAD

    def pidfd(self) -> int:
        """A pidfd, readable (poll) once the process has ended. The caller closes it.

        Works on processes that are not children.

        Raises:
            ProcessLookupError: the process is gone, or its pid now belongs to another one.
        """
        fd = os.pidfd_open(self.pid)
        # Open first, then compare: the pid cannot be reused in between.
        if self.state() == GONE:
            os.close(fd)
            raise ProcessLookupError(f"process {self.pid} started at {self.start_ticks} is gone")
        return fd

    def kill(self, signum: int = signal.SIGKILL) -> bool:
        """Send a signal to this process and to no other. False if it is gone."""
        if self.pid <= 0:
            return False
        try:
            fd = self.pidfd()
        except ProcessLookupError:
            return False
        try:
            signal.pidfd_send_signal(fd, signum)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True


def open_log(path: Path) -> int:
    """Open a process's log for appending, 0600; /dev/null if the disk does not allow it.

    A full, failing or read-only log disk must not keep a process from starting. The caller closes
    the descriptor; the caller's own log reports that the log is missing.

    Raises:
        InputError: the path is wrong: no such folder, no permission.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno not in _DISK_TROUBLE:
            raise InputError(
                f"cannot open log {path}: {error.strerror}", remedy="create its folder"
            ) from error
        _report_missing(path, error.strerror)
        return os.open(os.devnull, flags)


def _report_missing(path: Path, reason: str | None) -> None:
    from headway.common.log import complain, get_logger  # not of the standard library: only now

    complain(get_logger(__name__).warning, "no log can be opened", path=str(path), reason=reason)


def spawn(
    argv: Sequence[str | Path],
    log_path: Path,
    env: Mapping[str, str],
    cwd: Path | None = None,
    keep_fds: Sequence[int] = (),
) -> ProcessId:
    """Start a program that may outlive this process; return once it has been executed.

    Own session, no controlling terminal, stdin from /dev/null, stdout and stderr appended to
    ``log_path`` (a file, not a pipe: the reader's death must not kill the writer) as
    ``open_log`` opens it, no other file descriptor but ``keep_fds``, exactly ``env`` as
    environment, and a umask by which only the user can read its files. After its end the child is a
    zombie until ``reap_children`` collects it.

    Raises:
        InputError: no such program or folder, or the log's path is wrong.
    """
    log = open_log(log_path)
    try:
        child = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=True,
            pass_fds=tuple(keep_fds),
            start_new_session=True,
            umask=PRIVATE_UMASK,
            env=dict(env),
            cwd=cwd,
        )
    except OSError as error:
        raise InputError(
            f"cannot start {argv[0]}: {error.strerror}",
            remedy="check the program's path and the working folder",
        ) from error
    finally:
        os.close(log)
    identity = ProcessId.of(child.pid)
    # ``reap_children`` collects it; without this, Popen would warn that it is still running.
    child.returncode = 0
    if identity is None:
        raise HeadwayError(f"{argv[0]} ended at once", remedy=f"read {log_path}")
    return identity


def ending_with_me(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child of ours that calls ``end_with_parent`` and is to end with us."""
    return {**env, ENV_ENDS_WITH: str(os.getpid())}


def end_with_parent() -> None:
    """End this process when its parent ends, if that gave it ``ending_with_me``.

    The kernel sends SIGKILL once the thread that started this process has ended
    (PR_SET_PDEATHSIG, prctl(2)). Children of this process do not inherit that.

    Raises:
        SystemExit: the parent has ended already.
    """
    parent = os.environ.pop(ENV_ENDS_WITH, "")
    if not parent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if str(os.getppid()) != parent:  # it ended before the kernel was asked
        raise SystemExit(f"process {parent}, with which this one ends, has ended")


def return_free_memory() -> None:
    """Give freed heap pages back to the system; a C library without ``malloc_trim`` keeps them.

    Large buffers that are replaced repeatedly leave holes in glibc's heap, which it
    returns only when asked.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reap_children() -> None:
    """Collect every child that has ended, including adopted ones; never blocks.

    Do not wait for children (``subprocess.run``) in another thread: this collects every status.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
