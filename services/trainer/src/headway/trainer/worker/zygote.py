"""Forks warm workers: one process per node with torch imported, one thread, one socket.

A datagram with a worker's name is a request to fork it; the worker itself reports to the executor,
and the zygote's record (``zygote_beat``) shows that it serves and the result of each request. On
CUDA a fork would share a driver context, so there the worker is spawned.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

from headway.common import installed
from headway.common.config import load
from headway.common.errors import HeadwayError
from headway.common.log import get_logger, setup
from headway.common.node.process import open_log, spawn
from headway.common.node.run_dir import NodePaths, RunDir
from headway.common.node.zygote_beat import ZygoteBeat
from headway.common.paces import SERVICE_BEAT_S
from headway.trainer.config import RunConfig

MAX_DIGITS = 9  # the executor never counts further, and the name becomes a file name

log = get_logger("zygote")


def serve(run_dir: Path, node: int) -> int:
    """Fork on request until SIGTERM, which ends the process. Never returns in a forked child.

    Returns 1 when the source changed while it was imported: the next zygote imports one version.
    """
    source = installed.source()  # cached: the workers report it as theirs
    gc.disable()  # what is imported stays: collections in between would find nothing, for 0.4 s
    import headway.trainer.session.session  # noqa: F401 - imported before the fork, so that no worker has to
    import torch
    from headway.trainer.worker.worker import main

    setup("zygote", node=node)
    if installed.read_source() != source:
        log.error("Headway's source changed while it was imported", source=source)
        return 1
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    signal.signal(signal.SIGTERM, _end)
    folder = RunDir(run_dir)
    on_gpu = load(RunConfig, files=[folder.config]).train.device == "gpu"
    paths = NodePaths(folder.run_id, node)
    path = paths.socket("zygote")
    path.unlink(missing_ok=True)
    gc.collect()
    gc.freeze()  # keeps pages shared, and keeps collections during a recovery off torch's objects
    gc.enable()
    beat = ZygoteBeat(paths.shm_dir)
    with contextlib.closing(_Requests(path)) as requests:
        log.info("zygote is up", node=node, threads=len(os.listdir("/proc/self/task")))
        while True:
            beat.turn()
            requests.keep_reachable()
            try:
                name = requests.recv(256).decode("ascii", "replace")
            except TimeoutError:
                continue
            if not _valid(name, node):
                log.warning("ignored a request", request=name[:40])
                continue
            try:
                pid = _spawn(run_dir, node, name) if on_gpu else fork()
            except (OSError, HeadwayError) as error:
                log.error("cannot fork a worker", worker=name, reason=str(error))
                beat.failed(name, str(error))
                continue
            if pid == 0:
                requests.close()
                beat.close()
                _become_worker(run_dir, name)
                os._exit(main(run_dir, node, name))
            beat.forked(name, pid)


def _end(*_: object) -> NoReturn:
    """End at once: to take apart the modules of torch, as an exit does, takes 0.4 s of CPU."""
    os._exit(0)


class _Requests:
    """The socket that takes names of workers; made again where somebody removed its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_removed = False
        self._socket = self._bind()

    def _bind(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            made.bind(str(self._path))
        except OSError:
            made.close()
            raise
        made.settimeout(SERVICE_BEAT_S)
        return made

    def keep_reachable(self) -> None:
        """The folder is made again by the executor; until then every turn tries."""
        was_removed, self._is_removed = self._is_removed, not self._path.exists()
        if was_removed and self._is_removed:  # the second look: the cleaner is done
            with contextlib.suppress(OSError):
                made = self._bind()
                self._socket.close()
                self._socket = made
                log.warning("the socket was removed, and is there again", path=str(self._path))

    def recv(self, size: int) -> bytes:
        """Receive as ``socket.recv`` does; TimeoutError after one pause between two beats."""
        return self._socket.recv(size)

    def close(self) -> None:
        self._socket.close()


def fork() -> int:
    """Call ``os.fork`` with SIGTERM held back.

    A child that took the signal before ``_become_worker`` would end as the zygote does, with the
    exit code of a worker that was asked to quit. It takes the signal afterwards.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return pid


def _spawn(run_dir: Path, node: int, name: str) -> int:
    who = ["--run", str(run_dir), "--node", str(node), "--name", name]
    return spawn(
        [sys.executable, "-m", "headway.trainer", "worker", *who],
        log_path=_log_path(run_dir, name),
        env=os.environ,
        cwd=Path.cwd(),
    ).pid


def _valid(name: str, node: int) -> bool:
    prefix = f"n{node}w"
    number = name.removeprefix(prefix)
    return name.startswith(prefix) and number.isdigit() and len(number) <= MAX_DIGITS


def _log_path(run_dir: Path, name: str) -> Path:
    return RunDir(run_dir).logs / f"{name}.log"


def _become_worker(run_dir: Path, name: str) -> None:
    """In the forked child: a new session and log, and none of the zygote's signal handlers."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    out = open_log(_log_path(run_dir, name))
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
