"""The Python stack of a process that may hang, written by itself when another process asks.

The answer comes from a signal handler in C (``faulthandler``): it needs neither the interpreter
lock nor a debugger, so a process that holds the lock answers too. One that is stopped, frozen or in
an uninterruptible wait of the kernel does not.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path
from typing import Final

from headway.common.node.process import ProcessId

SIGNAL: Final = signal.SIGRTMIN + 7
"""A real-time signal, as schedulers and users' programs have a meaning for SIGUSR1 and SIGUSR2."""
_PREFIX, _SUFFIX = "stacks-", ".bin"


def answer_in(folder: Path) -> Path:
    """Have this process write its main thread's stack into a file of ``folder`` when asked.

    Files of processes that have ended are removed. Raises OSError.
    """
    for path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        pid = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        if not (pid.isdecimal() and Path(f"/proc/{pid}").exists()):
            path.unlink(missing_ok=True)
    path = stack_file(folder, os.getpid())
    # only the thread that receives the signal, which is the main one: to walk the frames of threads
    # that run may end the process. The descriptor is never closed, as the handler writes to it.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC
    faulthandler.register(SIGNAL, os.open(path, flags, 0o600), all_threads=False, chain=False)
    return path


def stack_file(folder: Path, pid: int) -> Path:
    """Where a process writes its stack."""
    return folder / f"{_PREFIX}{pid}{_SUFFIX}"


def ask(process: ProcessId) -> bool:
    """Ask a process for its stack; False if it would not answer, or has ended.

    A process that does not handle the signal would be ended by it, so it is asked nothing.
    """
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    words = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    caught = int(words.get("SigCgt", "0"), 16)
    return bool(caught >> (SIGNAL - 1) & 1) and process.kill(SIGNAL)
