"""A pool of worker processes that import torch once.

A zygote forks them; tests reuse, kill and replace them.

Each worker runs one job at a time on its main thread (``module:function`` with JSON
arguments) and has a control thread that takes aborts meanwhile, as a real worker does. Arrays
travel through files.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from headway.common.node.files import replace_file

JOB_TIMEOUT_S = 100.0


class JobFailed(AssertionError):
    """A job raised, or its worker ended; the text holds the worker's traceback."""


class WorkerPool:
    """A pool of ``size`` forked workers.

    ``submit`` and ``result`` address one, ``run`` the first few together.
    """

    def __init__(self, size: int) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._zygote = mine
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from {__name__} import run_zygote; run_zygote({theirs.fileno()})",
            ],
            pass_fds=[theirs.fileno()],
            env=dict(os.environ, OMP_NUM_THREADS="1"),
        )
        theirs.close()
        self._workers = [self._fork() for _ in range(size)]
        self._generation = 0

    def __len__(self) -> int:
        return len(self._workers)

    def next_generation(self) -> int:
        """A number no worker has been in yet: a fence lets nobody into an older one."""
        self._generation += 1
        return self._generation

    def pid(self, index: int) -> int:
        """Process id of a worker."""
        return self._workers[index][1]

    def submit(self, index: int, job: str, **args: Any) -> None:
        """Start ``job`` on a worker that has none."""
        self._send(index, {"op": "job", "job": job, "args": args})

    def result(self, index: int, timeout_s: float = JOB_TIMEOUT_S) -> Any:
        """What the job returned.

        Raises:
            JobFailed: it raised, its worker ended, or it took longer than ``timeout_s``.
        """
        connection = self._workers[index][0]
        try:
            if not connection.poll(timeout_s):
                threads = self._threads(index)
                raise JobFailed(f"worker {index} gave no answer in {timeout_s:.0f} s: {threads}")
            reply = json.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            raise JobFailed(f"worker {index} ended") from None
        if "error" in reply:
            raise JobFailed(f"worker {index}: {reply['error']}")
        return reply["value"]

    def run(
        self, job: str, args: Sequence[Mapping[str, Any]], timeout_s: float = JOB_TIMEOUT_S
    ) -> list[Any]:
        """Run ``job`` on the first ``len(args)`` workers at once; all are replaced if one fails."""
        try:
            for index, kwargs in enumerate(args):
                self.submit(index, job, **kwargs)
            deadline_s = time.monotonic() + timeout_s
            return [
                self.result(index, max(0.0, deadline_s - time.monotonic()))
                for index in range(len(args))
            ]
        except BaseException:
            for index in range(len(args)):
                self.replace(index)
            raise

    def abort(self, index: int, generation: int) -> None:
        """Fence ``generation`` in a worker, from its control thread."""
        self._send(index, {"op": "abort", "generation": generation})

    def signal(self, index: int, number: signal.Signals) -> None:
        """Send a signal to a worker."""
        os.kill(self.pid(index), number)

    def _threads(self, index: int) -> str:
        """The Python threads of a worker that is stuck, innermost calls first."""
        path = _dump_path(self.pid(index))
        with contextlib.suppress(ProcessLookupError, OSError):
            self.signal(index, signal.SIGUSR1)
            time.sleep(1.0)
            return path.read_text()
        return "it is gone"

    def replace(self, index: int) -> None:
        """End a worker, if it lives, and put a fresh one in its place."""
        self._end(*self._workers[index])
        self._workers[index] = self._fork()

    def close(self) -> None:
        """End all processes of the pool."""
        for worker in self._workers:
            self._end(*worker)
        self._zygote.close()
        self._process.wait()

    def _end(self, connection: Connection, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        connection.close()
        _dump_path(pid).unlink(missing_ok=True)

    def _fork(self) -> tuple[Connection, int]:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        socket.send_fds(self._zygote, [b"fork"], [theirs.fileno()])
        theirs.close()
        connection = Connection(mine.detach())
        return connection, int(json.loads(connection.recv_bytes())["pid"])

    def _send(self, index: int, message: Mapping[str, Any]) -> None:
        self._workers[index][0].send_bytes(json.dumps(message).encode())


@contextlib.contextmanager
def worker_pool(size: int) -> Iterator[WorkerPool]:
    """A pool for a with block."""
    pool = WorkerPool(size)
    try:
        yield pool
    finally:
        pool.close()


class WorkerContext:
    """What a job is given: its worker's fence, and a place for what outlives the job."""

    def __init__(self) -> None:
        from headway.trainer.comm.fence import Fence

        self.fence = Fence()
        self.kept: dict[str, Any] = {}


class FileRendezvous:
    """Announces a generation's store in a folder all ranks can read.

    In a run the driver does so by message.
    """

    def __init__(self, folder: str, generation: int, fence: Any) -> None:
        self._path = Path(folder) / f"store-{generation}"
        self._generation = generation
        self._fence = fence

    def announce(self, endpoint: Any) -> None:
        """Publish the address."""
        replace_file(self._path, f"{endpoint.host} {endpoint.port} {endpoint.secret}", mode=0o600)

    def lookup(self) -> Any:
        """Wait for the address, or for the end of the generation."""
        from headway.trainer.comm.interface import Aborted
        from headway.trainer.comm.store import StoreEndpoint

        while not self._path.exists():
            if self._fence.is_fenced(self._generation):
                raise Aborted
            time.sleep(0.001)
        host, port, secret = self._path.read_text().split()
        return StoreEndpoint(host, int(port), secret)


def _dump_path(pid: int) -> Path:
    return Path(tempfile.gettempdir()) / f"headway-test-threads-{pid}"


def run_zygote(fd: int) -> None:
    """Import torch, then fork a worker for every descriptor received.

    Ends with the pool's owner.
    """
    import gc

    import torch
    import torch.distributed

    for name in ("jobs", "training"):
        importlib.import_module(f"headway.testkit.trainer.{name}")
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    orders = socket.socket(fileno=fd)
    while True:
        data, fds, _, _ = socket.recv_fds(orders, 4, 1)
        if not data:
            return
        if os.fork() == 0:
            orders.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                _run_worker(Connection(fds[0]))
            finally:
                os._exit(1)
        os.close(fds[0])


def _run_worker(connection: Connection) -> None:
    dump = _dump_path(os.getpid()).open("w")  # shows where a stuck worker is
    faulthandler.register(signal.SIGUSR1, dump)
    context = WorkerContext()
    jobs: SimpleQueue[dict[str, Any]] = SimpleQueue()
    connection.send_bytes(json.dumps({"pid": os.getpid()}).encode())
    threading.Thread(target=_control, args=(connection, jobs, context), daemon=True).start()
    while True:
        order = jobs.get()
        module, name = order["job"].split(":")
        try:
            reply = {
                "value": getattr(importlib.import_module(module), name)(context, **order["args"])
            }
        except Exception as error:
            reply = {"error": traceback.format_exc()}
            traceback.clear_frames(error.__traceback__)
        connection.send_bytes(json.dumps(reply).encode())


def _control(
    connection: Connection, jobs: SimpleQueue[dict[str, Any]], context: WorkerContext
) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            order = json.loads(connection.recv_bytes())
            if order["op"] == "job":
                jobs.put(order)
            else:
                context.fence.abort(order["generation"])
    os._exit(0)
