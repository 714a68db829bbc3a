"""Shared memory and processes of one machine. Names load their module on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.common.node.arena import Arena, ArenaSlot, SlotInfo
    from headway.common.node.failpoints import failpoint
    from headway.common.node.flight import FlightReader, FlightWriter
    from headway.common.node.process import LastWords, ProcessId, Reaper, become_subreaper, spawn
    from headway.common.node.ring import RingReader, RingWriter
    from headway.common.node.run_dir import NodePaths, RunDir, RunLock
    from headway.common.node.segment import Segment

_HOMES = {
    "Arena": "arena",
    "ArenaSlot": "arena",
    "FlightReader": "flight",
    "FlightWriter": "flight",
    "LastWords": "process",
    "NodePaths": "run_dir",
    "ProcessId": "process",
    "Reaper": "process",
    "RingReader": "ring",
    "RingWriter": "ring",
    "RunDir": "run_dir",
    "RunLock": "run_dir",
    "Segment": "segment",
    "SlotInfo": "arena",
    "become_subreaper": "process",
    "failpoint": "failpoints",
    "spawn": "process",
}

__all__ = [
    "Arena",
    "ArenaSlot",
    "FlightReader",
    "FlightWriter",
    "LastWords",
    "NodePaths",
    "ProcessId",
    "Reaper",
    "RingReader",
    "RingWriter",
    "RunDir",
    "RunLock",
    "Segment",
    "SlotInfo",
    "become_subreaper",
    "failpoint",
    "spawn",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
