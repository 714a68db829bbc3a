"""Shared memory and processes of one machine. Names load their module on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.common.node.arena import Arena, ArenaSlot
    from headway.common.node.arena_reader import SlotInfo
    from headway.common.node.exit_record import ExitRecord
    from headway.common.node.failpoints import failpoint
    from headway.common.node.flight import FlightReader, FlightWriter
    from headway.common.node.process import ProcessId, reap_children, spawn
    from headway.common.node.ring import RingReader, RingWriter
    from headway.common.node.run_dir import NodePaths, RunDir, RunLock
    from headway.common.node.segment import Segment

__all__ = [
    "Arena",
    "ArenaSlot",
    "ExitRecord",
    "FlightReader",
    "FlightWriter",
    "NodePaths",
    "ProcessId",
    "RingReader",
    "RingWriter",
    "RunDir",
    "RunLock",
    "Segment",
    "SlotInfo",
    "failpoint",
    "reap_children",
    "spawn",
]

__getattr__, __dir__ = lazy(
    __name__,
    arena="Arena ArenaSlot",
    arena_reader="SlotInfo",
    failpoints="failpoint",
    flight="FlightReader FlightWriter",
    exit_record="ExitRecord",
    process="ProcessId reap_children spawn",
    ring="RingReader RingWriter",
    run_dir="NodePaths RunDir RunLock",
    segment="Segment",
)
