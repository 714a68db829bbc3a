"""A tensor-parallel peer of a hung rank shows that it waits, although its open action computes."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from headway.common.node.flight import FlightReader, FlightWriter
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Kind
from headway.common.polling import wait_until
from headway.health.sources.flight import FlightSource
from headway.testkit.trainer.gloo_threads import over_gloo
from headway.trainer.comm.groups import Groups
from headway.trainer.parallel.tensor import TensorParallel

LIMIT_S = 30.0


def test_in_the_same_forward_only_the_peer_of_a_held_rank_waits(tmp_path: Path) -> None:
    is_seen = threading.Event()
    writers = [FlightWriter.create(tmp_path / f"flight-{rank}.bin", rank) for rank in range(2)]

    def member(groups: Groups) -> list[float]:
        tp = TensorParallel(groups["tp"])
        groups.channels.waiting = writers[tp.rank].waiting
        with writers[tp.rank].record(Kind.FORWARD):
            if tp.rank == 1:  # held between two layers
                assert is_seen.wait(LIMIT_S)
            return [float(x) for x in tp.all_gather(torch.full((1, 2), tp.rank)).wait().flatten()]

    def look() -> None:
        reader, source = FlightReader(tmp_path / "flight-0.bin"), FlightSource(tmp_path)

        def are_both_in_it() -> bool:  # each rank begins its record when its thread runs
            found[:] = [(one.open_kind, one.waits) for one in source.read()]
            return reader.header.is_waiting and all(kind for kind, _ in found)

        wait_until(are_both_in_it, LIMIT_S)
        is_seen.set()
        reader.close(), source.close()

    found: list[tuple[str, str]] = []
    observer = threading.Thread(target=look)
    observer.start()
    results = over_gloo(Grid(tp=2, pp=1, dp=1), member)
    observer.join(LIMIT_S)
    for writer in writers:
        writer.close()
    assert found == [("FORWARD", "others"), ("FORWARD", "")]
    assert results == [[0.0, 0.0, 1.0, 1.0]] * 2
