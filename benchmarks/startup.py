"""Times how long the ranks of a generation take to meet in its store, and counts their requests.

    python -m benchmarks.startup [--ranks 2048 12288] [--times 3] [--out FILE]

The store is the real one, in a process of its own. Ranks are played: each has the connection that a
rank has, with its own handshake, and asks what NCCL and the engine ask while a generation is built:
for each communicator its first member stores an identifier that the others get, and at the end all
ranks arrive. The grid is tp 8, pp 8 and as many replicas as there are ranks for, without
interleaving. The time includes the start of the processes that play. What is not played: NCCL's
own connections between members.
"""

from __future__ import annotations

import multiprocessing
import resource
import select
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import zmq
from headway.common.plan.grid import AXES, Grid
from headway.common.wire.endpoint import HIGH_WATER_MARK, set_client_keys, set_options
from headway.trainer.comm.factories import _pairs
from headway.trainer.comm.store import StoreEndpoint, StoreServer, _decode_reply, _encode, _Request

from benchmarks import report

HOST = "127.0.0.1"
TP, PP = 8, 8
PLAYERS = 3
"""Processes that play ranks."""
FILES_OF_RANK = 2
IDENTIFIER = bytes(128)
"""As long as NCCL's."""
LIMIT_S = 120.0


def requests(grid: Grid, rank: int) -> Iterator[_Request]:
    """What a rank asks, in order; ends when it has met all others."""
    groups = [(axis, grid.group(axis, rank)) for axis in AXES]
    for axis, members in groups:
        if len(members) > 1:
            yield _communicator(axis, members, rank)
        if axis == "pp":
            place = members.index(rank)
            for lane, upward, low, high in _pairs(len(members), wraps=False, is_v=False):
                if place in (low, high):
                    name = f"{lane}-{upward}-{low}"
                    yield _communicator(name, [members[low], members[high]], rank)
    yield _Request("add", ("arrived",), amount=1)
    yield _Request("wait", ("all-arrived",))


def _communicator(name: str, members: Sequence[int], rank: int) -> _Request:
    key = (f"{name}-{min(members)}",)
    return _Request("set", key, IDENTIFIER) if rank == members[0] else _Request("get", key)


def play(ranks: Sequence[int], grid: Grid, endpoint: StoreEndpoint) -> Counter[int]:
    """Play ``ranks`` to the end; how many of them made how many requests."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, len(ranks) + 10)
    poller, sockets = select.epoll(), dict[int, zmq.Socket[bytes]]()
    left = {}
    for rank in ranks:
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        set_client_keys(socket, None, endpoint.secret.encode())
        set_options(socket, str(endpoint), HIGH_WATER_MARK)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 0)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, 0)
        socket.connect(str(endpoint))
        sockets[socket.fd], left[socket.fd] = socket, requests(grid, rank)
        poller.register(socket.fd, select.EPOLLIN | select.EPOLLET)
        socket.send(_encode(next(left[socket.fd])))
        socket.getsockopt(zmq.EVENTS)  # else its file may not report the answer
    made = Counter[int]()
    deadline = time.monotonic() + LIMIT_S
    while left:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(left)} ranks have not met after {LIMIT_S:g} s")
        for fd, _ in poller.poll(0.2):
            if fd in left:
                _follow(sockets[fd], left, fd, made, grid.world_size)
    context.destroy(linger=0)
    return Counter(number + 1 for number in made.values())


def _follow(
    socket: zmq.Socket[bytes],
    left: dict[int, Iterator[_Request]],
    fd: int,
    made: Counter[int],
    world_size: int,
) -> None:
    """Take the answers that are there, and ask the next questions."""
    while socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
        reply = _decode_reply(socket.recv(zmq.NOBLOCK))
        assert not reply.error, reply.error
        following = next(left[fd], None)
        if following is None:
            del left[fd]
            return
        if following.op == "wait" and reply.number == world_size:  # the last one to arrive
            socket.send(_encode(_Request("set", ("all-arrived",), b"1")))
            left[fd] = iter([following])
            continue
        made[fd] += 1
        socket.send(_encode(following))


def serve(world_size: int, address: Any, finished: Any) -> None:
    """Serve until ``finished`` is set."""
    server = StoreServer(HOST, world_size=world_size, timeout_s=LIMIT_S)
    address.put(server.endpoint)
    finished.wait()
    server.close()


def measure(world_size: int) -> tuple[float, dict[int, int]]:
    """Seconds until all have met, and how many ranks asked how often."""
    grid = Grid(tp=TP, pp=PP, dp=world_size // (TP * PP))
    made = multiprocessing.get_context("fork")
    address, finished = made.Queue(), made.Event()
    server = made.Process(target=serve, args=(world_size, address, finished), daemon=True)
    server.start()
    try:
        endpoint = address.get(timeout=LIMIT_S)
        parts = [range(first, world_size, PLAYERS) for first in range(PLAYERS)]
        with ProcessPoolExecutor(PLAYERS, mp_context=made) as pool:
            began_s = time.perf_counter()
            counts = list(pool.map(play, parts, [grid] * PLAYERS, [endpoint] * PLAYERS))
            took_s = time.perf_counter() - began_s
    finally:
        finished.set()
    server.join()
    return took_s, dict(sorted(sum(counts, Counter[int]()).items()))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each size."""
    parser = report.parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2048, 12288])
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args(argv)
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for world_size in options.ranks:
        needed = 100 + max(world_size, FILES_OF_RANK * world_size // PLAYERS)
        if world_size % (TP * PP):
            parser.error(f"--ranks {world_size} cannot be divided by {TP * PP}")
        if needed > most_files:
            parser.error(f"--ranks {world_size} needs {needed} open files: raise `ulimit -n`")
    rows = {}
    for world_size in options.ranks:
        found = [measure(world_size) for _ in range(options.times)]
        seconds = [round(took_s, 2) for took_s, _ in found]
        rows[str(world_size)] = {
            "median_s": statistics.median(seconds),
            "seconds": seconds,
            "ranks_by_requests": found[0][1],
        }
        print(f"{world_size} ranks: {rows[str(world_size)]}", flush=True)
    report.write(options.out, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
