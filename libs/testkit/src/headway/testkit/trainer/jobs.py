"""Jobs for the worker pool: groups, collectives and messages, checked by value.

They also check what is left behind.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from headway.common.plan.grid import Grid
from headway.testkit.trainer.models import Part, random_batch, tiny_model
from headway.testkit.trainer.pool import FileRendezvous, WorkerContext
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.groups import Groups, build
from headway.trainer.comm.interface import Aborted

GROUP_TIMEOUT_S = 8.0


def join(
    context: WorkerContext,
    grid: Grid,
    rank: int,
    generation: int,
    folder: str,
    timeout_s: float = GROUP_TIMEOUT_S,
    **options: Any,
) -> Groups:
    """Enter ``generation`` and build its groups; ``options`` as of ``build``."""
    channels = Channels()
    context.fence.enter(generation, channels)
    meeting = FileRendezvous(folder, generation, context.fence)
    return build(
        generation,
        grid,
        rank,
        host="127.0.0.1",
        announce=meeting.announce,
        lookup=meeting.lookup,
        channels=channels,
        timeout_s=timeout_s,
        **options,
    )


def exchange(
    context: WorkerContext, *, grid: dict[str, Any], rank: int, generation: int, folder: str
) -> Any:
    """One round of every operation on every group; returns values and listening addresses."""
    plan = Grid(**grid)
    groups = join(context, plan, rank, generation, folder)
    try:
        report = {
            "world": reduce_once(groups.every_rank, rank),
            "gathered": gather_once(groups["pp"], rank),
            "tp": reduce_once(groups["tp"], rank),
            "dp": reduce_once(groups["dp"], rank),
            "scattered": scatter_once(groups["pp"], rank),
            "pipe": pass_on(groups, rank),
            "listening": listening_addresses(),
        }
    finally:
        context.fence.leave(broken=False)
        groups.release()
    return report


def tp_pass(
    context: WorkerContext, *, tp: int, rank: int, generation: int, folder: str, block: str
) -> Any:
    """Loss, squared norm and, by name, the squared gradient norms of this rank's pieces."""
    groups = join(context, Grid(tp=tp, pp=1, dp=1), rank, generation, folder)
    try:
        model = tiny_model(block)
        part = Part(model, comm=groups["tp"])
        loss = part.run(random_batch(model))
        part.chunk.finish_grads(0)
        squares = {name: grad.square().sum().item() for name, grad in part.grads().items()}
        return {"loss": loss, "norm_square": part.flat.norm_square().item(), "squares": squares}
    finally:
        context.fence.leave(broken=False)
        groups.release()


def reduce_once(comm: Any, rank: int) -> float:
    """Sum of world ranks over the group."""
    tensor = torch.full((1000,), float(rank), dtype=torch.float64)
    comm.all_reduce(tensor).wait()
    assert tensor.eq(tensor[0]).all()
    return float(tensor[0])


def gather_once(comm: Any, rank: int) -> list[float]:
    """World ranks in group order."""
    out = torch.zeros(comm.size * 3)
    comm.all_gather(out, torch.full((3,), float(rank))).wait()
    return [float(v) for v in out.tolist()]


def scatter_once(comm: Any, rank: int) -> list[float]:
    """This member's piece of the summed 0, 1, 2, ..."""
    flat = torch.arange(comm.size * 2, dtype=torch.float64) + rank
    out = torch.zeros(2, dtype=torch.float64)
    comm.reduce_scatter(out, flat).wait()
    return [float(v) for v in out.tolist()]


def pass_on(groups: Groups, rank: int) -> float:
    """World rank of the previous pipeline rank, received over the forward lane, around the ring."""
    pipe = groups.pipe
    if pipe.size == 1:
        return float(rank)
    inbox, outbox = torch.zeros(5), torch.full((5,), float(rank))
    receive = pipe.recv("forward", inbox, (pipe.rank - 1) % pipe.size, tag=7)
    pipe.send("forward", outbox, (pipe.rank + 1) % pipe.size, tag=7).wait()
    receive.wait()
    return float(inbox[0])


def listening_addresses() -> list[str]:
    """Hex addresses of this process's listening TCP sockets, from the kernel's tables."""
    mine = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            mine.add(str(entry.readlink()).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in mine:
                found.append(fields[1].split(":")[0])
    return found


def stay_busy(
    context: WorkerContext,
    *,
    grid: dict[str, Any],
    rank: int,
    generation: int,
    folder: str,
    timeout_s: float = GROUP_TIMEOUT_S,
) -> Any:
    """Run all-reduces and messages until the generation ends.

    Returns how it ended, and what is left of it.
    """
    plan = Grid(**grid)
    why, done = "", 0
    groups = None
    try:
        groups = join(context, plan, rank, generation, folder, timeout_s)
        (Path(folder) / f"inside-{generation}-{rank}").touch()
        while True:
            reduce_once(groups.every_rank, rank)
            pass_on(groups, rank)
            done += 1
    except Aborted:
        why = "aborted"
    except RuntimeError as error:
        why = f"transport: {str(error)[:200]}"
    context.fence.leave()
    if groups is not None:
        groups.release()
    return {"why": why, "done": done}


def wait_for_a_silent_peer(
    context: WorkerContext, *, grid: dict[str, Any], rank: int, generation: int, folder: str
) -> Any:
    """Rank 0 waits for a message that never comes; the others stay in the generation, idle."""
    groups = join(context, Grid(**grid), rank, generation, folder)
    (Path(folder) / f"inside-{generation}-{rank}").touch()
    try:
        if rank == 0:
            groups.pipe.recv("backward", torch.zeros(3), 1, tag=1).wait()
        while True:
            groups.channels.check()
            time.sleep(0.001)
    except Aborted:
        return "aborted"
    finally:
        context.fence.leave()
        groups.release()


def send_to_a_stopped_peer(
    context: WorkerContext, *, rank: int, generation: int, folder: str
) -> Any:
    """Rank 1 posts receives, and is stopped by the test; rank 0 sends until it is aborted."""
    groups = join(context, Grid(pp=2), rank, generation, folder)
    sizes = [4 << 18] * 6 + [64 << 18] * 3
    try:
        if rank == 1:
            inboxes = [torch.empty(size) for size in sizes]
            for tag, inbox in enumerate(inboxes):
                groups.pipe.recv("forward", inbox, 0, tag)
            (Path(folder) / f"posted-{generation}").touch()
        while not (Path(folder) / f"go-{generation}").exists():
            groups.channels.check()
            time.sleep(0.001)
        sends = [groups.pipe.send("forward", torch.zeros(n), 1, t) for t, n in enumerate(sizes)]
        (Path(folder) / f"sending-{generation}").touch()
        for send in sends:
            send.wait()
    except Aborted:
        return "aborted"
    finally:
        context.fence.leave()
        groups.release()
    return "sent"


def left_behind(
    _context: WorkerContext, *, max_threads: int, max_fds: int, limit_s: float
) -> dict[str, Any]:
    """Return the threads and descriptors once they are down to the limits.

    After ``limit_s`` it returns them as they are; then ``stuck`` says what the threads are and
    whether a garbage collection ends them.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        threads, fds = _entries("task"), _entries("fd")
        if threads <= max_threads and fds <= max_fds:
            return {"threads": threads, "fds": fds, "stuck": []}
        if time.monotonic() > deadline_s:
            return {"threads": threads, "fds": fds, "stuck": [*_threads(), _after_collection()]}
        time.sleep(0.01)


def _threads() -> list[str]:
    """Each thread with the innermost Python lines it is at, or what the kernel says of it."""
    frames = sys._current_frames()
    known = {thread.native_id: thread for thread in threading.enumerate()}
    found = []
    for entry in Path("/proc/self/task").iterdir():
        thread = known.get(int(entry.name))
        if thread is None:
            found.append(f"{(entry / 'comm').read_text().strip()}: not Python's")
            continue
        stack = traceback.extract_stack(frames.get(thread.ident or 0))[-6:]
        found.append(f"{thread.name}: {[f'{line.name} {line.lineno}' for line in stack]}")
    return found


def _after_collection() -> str:
    before, collected = _entries("task"), gc.collect()
    time.sleep(2.0)
    return f"{collected} objects collected, {before} threads became {_entries('task')}"


def _entries(kind: str) -> int:
    return sum(1 for _ in Path(f"/proc/self/{kind}").iterdir())
