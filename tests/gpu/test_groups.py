"""NCCL groups and snapshots on real devices.

Ranks are processes that run this file as a program. Where there are fewer devices than ranks each
rank says it is another host (NCCL_HOSTID), because NCCL refuses two ranks of one host on one
device; messages then go by loopback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from headway.common.node.arena import Arena
from headway.common.node.files import replace_file
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.node.group_table import GroupTable
from headway.common.plan.collectives import GroupKind
from headway.common.plan.grid import Grid
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.groups import Groups, build
from headway.trainer.comm.interface import Aborted
from headway.trainer.comm.nccl import (
    JointAbort,
    NcclComm,
    nccl_group,
    read_when_ready,
)
from headway.trainer.comm.store import StoreEndpoint
from headway.trainer.device.choose import take_device
from headway.trainer.state import copy_stream
from headway.trainer.state.flat import FlatChunk
from headway.trainer.state.params import ParamSpec, Precision
from headway.trainer.state.slot_layout import layout, offsets
from headway.trainer.state.snapshot import Snapshots
from headway.trainer.state.train_state import TrainState

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
LIMIT_S = 240.0
GRIDS = [
    {"tp": 1, "pp": 2, "dp": 1, "vp": 2},
    {"tp": 1, "pp": 4, "dp": 1, "vp": 2},
    {"tp": 2, "pp": 2, "dp": 1, "vp": 2},
]


def run_ranks(job: str, folder: Path, grid: dict[str, int]) -> list[dict[str, Any]]:
    """Run ``job`` on every rank of ``grid``; what each printed."""
    world = Grid(**grid).world_size
    processes = []
    for rank in range(world):
        env = dict(os.environ, NCCL_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
        if torch.cuda.device_count() < world:
            env["NCCL_HOSTID"] = f"headway-test-{rank}"
        command = [sys.executable, __file__, job, str(rank), str(folder), json.dumps(grid)]
        processes.append(
            subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    deadline_s = time.monotonic() + LIMIT_S
    try:
        outputs = [
            process.communicate(timeout=max(0.1, deadline_s - time.monotonic()))
            for process in processes
        ]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_group_reduces_gathers_scatters_and_passes_messages_around_the_ring(
    tmp_path: Path, grid: dict[str, int]
) -> None:
    """Catches a lane in one communicator: each rank posts three receives
    ahead of its first send."""
    plan, reports = Grid(**grid), run_ranks("exchange", tmp_path, grid)
    world = plan.world_size
    for rank, report in enumerate(reports):
        assert report["world"] == sum(range(world))
        assert report["tp"] == sum(plan.group("tp", rank))
        line = list(plan.group("pp", rank))
        assert report["gathered"] == [float(r) for r in line for _ in range(3)]
        place = line.index(rank)
        assert report["scattered"] == [len(line) * (2 * place + i) + sum(line) for i in (0, 1)]
        before, after = line[line.index(rank) - 1], line[(line.index(rank) + 1) % len(line)]
        assert report["messages"] == [3, 3, 3, 3], "sent and received, forward and backward"
        assert report["forward"] == [10.0 * before + n for n in range(3)]
        assert report["backward"] == [10.0 * after + n for n in range(3)]


def test_an_abort_frees_the_device_and_the_same_processes_build_again(tmp_path: Path) -> None:
    """Catches communicators that are not aborted, and a watchdog that ends the process."""
    for report in run_ranks("abort", tmp_path, {"tp": 1, "pp": 2, "dp": 1}):
        assert report == {"left": "aborted", "again": 1.0}


def test_one_communicator_of_one_rank_reduces_and_aborts() -> None:
    device, channels, joint = take_device(0), Channels(), JointAbort()
    channels.on_abort(joint.abort)
    dist: Any = torch.distributed
    group = nccl_group(dist.HashStore(), 0, 1, device)
    joint.add(group)
    comm = NcclComm(group, channels, 0, 1)
    tensor = torch.arange(4.0, device=device)
    comm.all_reduce(tensor).wait()
    out = torch.zeros(4, device=device)
    comm.all_gather(out, tensor).wait()
    assert read_when_ready(out, channels) == [0.0, 1.0, 2.0, 3.0]
    channels.abort()
    with pytest.raises(Aborted):
        comm.all_reduce(tensor)
    torch.cuda.synchronize()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in shared memory, where arenas live: other file systems may refuse a page lock."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


class _Refusing:
    """A CUDA runtime that page-locks nothing."""

    def cudaHostRegister(self, *_: Any) -> int:
        return 801


@pytest.mark.parametrize("refuses", [False, True], ids=["page-locked", "pageable"])
def test_snapshots_hold_what_was_written_before_them_bit_for_bit(
    memory: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """Catches a copy that does not wait for the optimizer, one sealed before it is done,
    and a wrong restore."""
    if refuses:
        monkeypatch.setattr(copy_stream, "_cudart", _Refusing)
    # not the device a new thread starts on, where there are two
    device = take_device(torch.cuda.device_count() - 1)
    precision = Precision.of("fp32")
    specs = [
        ParamSpec("w", (1000, 333), None, 0, 1, True),
        ParamSpec("b", (77,), None, 0, 1, False),
    ]
    flats = [
        FlatChunk(specs, dp_rank=0, dp_size=1, precision=precision, device=device) for _ in range(2)
    ]
    slot_bytes, where = offsets(flats)[1], layout(flats, Grid(), 0)
    expected: dict[int, list[torch.Tensor]] = {}
    with Arena.create(
        memory / "arena", run_id="0123abcd", rank=0, slot_bytes=slot_bytes, layout=where
    ) as arena:
        snapshots = Snapshots(arena, flats)
        snapshots.lock()
        for step in range(7):  # every slot more than once
            torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]  # 0.1 s: the write comes late
            for flat in flats:
                flat.state.normal_()
            snapshots.begin(step, 0, TrainState(step=step, samples=8 * step), durable=False)
            torch.cuda._sleep(1_000_000_000)  # type: ignore[no-untyped-call]  # the next step, about 0.5 s
            after: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            after.record()
            snapshots.finish()
            if not refuses:
                assert not after.query(), "the copy waited for the step it runs beside"
            expected[step] = [flat.state.cpu() for flat in flats]
            data, _ = arena.view(step)
            for flat, start, wanted in zip(flats, offsets(flats)[0], expected[step], strict=True):
                assert np.array_equal(
                    data[start : start + flat.state.nbytes], wanted.numpy().view(np.uint8)
                )
            snapshots.commit(step)
        assert snapshots._gpu is not None
        assert [locked for _, locked in snapshots._gpu._slots.values()] == [not refuses] * 2
        for flat in flats:
            flat.state.zero_()
        assert snapshots.restore(6) == TrainState(step=6, samples=48)
        for flat, wanted in zip(flats, expected[6], strict=True):
            assert torch.equal(flat.state.cpu().view(torch.int32), wanted.view(torch.int32))
        snapshots.close()
        assert not snapshots._gpu._slots


# What follows runs in the ranks' processes.


def join(
    channels: Channels,
    rank: int,
    folder: Path,
    grid: Grid,
    generation: int,
    device: torch.device,
    table: GroupTable | None = None,
) -> Groups:
    address = folder / f"store-{generation}"

    def announce(endpoint: StoreEndpoint) -> None:
        replace_file(address, f"{endpoint.host} {endpoint.port} {endpoint.secret}")

    def lookup() -> StoreEndpoint:
        while not address.exists():
            time.sleep(0.01)
        host, port, secret = address.read_text().split()
        return StoreEndpoint(host, int(port), secret)

    return build(
        generation,
        grid,
        rank,
        host="127.0.0.1",
        announce=announce,
        lookup=lookup,
        channels=channels,
        timeout_s=100.0,
        device=device,
        table=table,
    )


def exchange(rank: int, folder: Path, grid: Grid) -> dict[str, Any]:
    """One round of every operation."""
    device, channels = take_device(rank), Channels()
    ring = folder / f"flight-{rank}.bin"
    flight = FlightWriter.create(ring, rank)
    groups = join(channels, rank, folder, grid, 0, device, flight.table)

    def total(comm: Any) -> float:
        tensor = torch.full((1000,), float(rank), dtype=torch.float64, device=device)
        comm.all_reduce(tensor).wait()
        return read_when_ready(tensor, channels)[-1]

    line, pipe = groups["pp"], groups.pipe
    gathered = torch.zeros(line.size * 3, device=device)
    line.all_gather(gathered, torch.full((3,), float(rank), device=device)).wait()
    scattered = torch.zeros(2, dtype=torch.float64, device=device)
    flat = torch.arange(line.size * 2, dtype=torch.float64, device=device) + rank
    line.reduce_scatter(scattered, flat).wait()
    below, above = (pipe.rank - 1) % pipe.size, (pipe.rank + 1) % pipe.size
    numel = 1 << 20  # too many bytes for a send to end before its receive is there
    inboxes = {
        way: [torch.zeros(numel, device=device) for _ in range(3)]
        for way in ("forward", "backward")
    }
    receives = [pipe.recv("forward", inbox, below, n) for n, inbox in enumerate(inboxes["forward"])]
    receives += [
        pipe.recv("backward", inbox, above, n) for n, inbox in enumerate(inboxes["backward"])
    ]
    outboxes = [torch.full((numel,), 10.0 * rank + n, device=device) for n in range(3)]
    sends = [pipe.send("forward", outbox, above, n) for n, outbox in enumerate(outboxes)]
    sends += [pipe.send("backward", outbox, below, n) for n, outbox in enumerate(outboxes)]
    for ticket in (*receives, *sends):
        ticket.wait()
    ends = {
        way: [read_when_ready(inbox[-1:], channels)[0] for inbox in inboxes[way]] for way in inboxes
    }
    report = {
        "world": total(groups.every_rank),
        "tp": total(groups["tp"]),
        "gathered": read_when_ready(gathered, channels),
        "scattered": read_when_ready(scattered, channels),
        "messages": messages(ring),
        **ends,
    }
    groups.meet()
    groups.release()
    return report


def messages(ring: Path) -> list[int]:
    """How many were counted: sent and received forward, then backward."""
    counts = Counter({one.line: one.entered for one in FlightReader(ring).groups()})
    ways = [
        (GroupKind.FORWARD, GroupKind.FORWARD_WRAP),
        (GroupKind.BACKWARD, GroupKind.BACKWARD_WRAP),
    ]
    return [sum(counts[2 * kind + end] for kind in kinds) for kinds in ways for end in (0, 1)]


def abort(rank: int, folder: Path, grid: Grid) -> dict[str, Any]:
    """Wait for messages that never come, on several communicators, until aborted; then
    once more with all well."""
    device, channels = take_device(rank), Channels()
    groups = join(channels, rank, folder, grid, 0, device)
    left, inbox = "", torch.zeros(1 << 20, device=device)
    stuck: list[Any] = []
    lane: Any = "backward" if rank == 0 else "forward"
    waiting = groups.pipe.recv(lane, inbox, 1 - rank, 0)  # both receive, nobody sends
    if rank == 0:
        # the other never joins in
        stuck.append(groups["pp"].all_reduce(torch.zeros(1 << 20, device=device)))
    threading.Timer(2.0, channels.abort).start()
    try:
        waiting.wait()
        read_when_ready(inbox[:1], channels)
    except Aborted:
        left = "aborted"
    torch.cuda.synchronize()
    groups.release()
    del waiting, groups, stuck
    channels = Channels()
    groups = join(channels, rank, folder, grid, 1, device)
    tensor = torch.full((10,), float(rank), device=device)
    groups.every_rank.all_reduce(tensor).wait()
    again = read_when_ready(tensor, channels)[0]
    groups.meet()
    groups.release()
    return {"left": left, "again": again}


if __name__ == "__main__":
    job, own_rank, shared, degrees = sys.argv[1:]
    answer = {"exchange": exchange, "abort": abort}[job](
        int(own_rank), Path(shared), Grid(**json.loads(degrees))
    )
    print(json.dumps(answer), flush=True)
