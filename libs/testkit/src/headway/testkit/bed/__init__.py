"""Separate machines on one Linux host, as root.

A node has its own network, processes, host name, clocks, /dev/shm, /tmp and disk. ``python -m
headway.testkit.bed --help`` starts one by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.testkit.bed.bed import Bed
    from headway.testkit.bed.capture import Capture
    from headway.testkit.bed.listening import Listener
    from headway.testkit.bed.node import Node
    from headway.testkit.bed.process import Process
    from headway.testkit.bed.shaping import CannotError
    from headway.testkit.bed.traffic import Datagram, Stream, datagrams, streams

__all__ = [
    "Bed",
    "CannotError",
    "Capture",
    "Datagram",
    "Listener",
    "Node",
    "Process",
    "Stream",
    "datagrams",
    "streams",
]

# Lazy, because the first process of every node imports this package.
__getattr__, __dir__ = lazy(
    __name__,
    bed="Bed",
    capture="Capture",
    listening="Listener",
    node="Node",
    process="Process",
    shaping="CannotError",
    traffic="Datagram Stream datagrams streams",
)
