"""What a peer of the pairwise check receives, and what it has measured."""

from __future__ import annotations

from headway.common.wire.about import reply, request
from headway.common.wire.message import Message


class MeasureCpu(Message, tag="peer.measure_cpu/1"):
    """Asks a peer to repeat a fixed piece of arithmetic and to check its result."""

    about = request("coordinator -> peer over tcp: one per node, two for a suspect")

    burst_s: float
    """How long one measurement takes."""
    num_bursts: int
    """The fastest one counts."""


class CpuMeasured(Message, tag="peer.cpu_measured/1"):
    """How fast a peer computes, and whether the result was right."""

    about = reply("peer -> coordinator over tcp: one per `MeasureCpu`")

    products_per_s: float
    """Runs of the fixed piece of arithmetic per second."""
    is_exact: bool
    """Every result was right to the bit."""


class OpenLink(Message, tag="peer.open_link/1"):
    """Asks a peer to wait for another one, which will measure the link between them."""

    about = request("coordinator -> peer over tcp: one per pair, to its first node")

    burst_s: float
    num_bursts: int


class LinkOpened(Message, tag="peer.link_opened/1"):
    """Where the other peer must connect to, and what it must show there."""

    about = reply("peer -> coordinator over tcp: one per `OpenLink`")

    address: str
    port: int
    token: bytes
    """Valid once, for this link."""


class MeasureLink(Message, tag="peer.measure_link/1"):
    """Asks a peer to measure its link to another one that waits for it."""

    about = request("coordinator -> peer over tcp: one per pair, to its second node")

    address: str
    port: int
    token: bytes
    burst_s: float
    num_bursts: int


class LinkMeasured(Message, tag="peer.link_measured/1"):
    """What the link between two peers carries, as the second one has measured it."""

    about = reply("peer -> coordinator over tcp: one per `MeasureLink`")

    sent_bytes_per_s: float
    """From the second peer to the first, the fastest one of all bursts."""
    received_bytes_per_s: float
    latency_s: float
    """Median time of a small message there and back."""
    num_damaged: int
    """Blocks that arrived changed, in both directions."""


class OpenRing(Message, tag="peer.open_ring/1"):
    """Asks a peer to listen for the member before it in a ring; the ring before is given up."""

    about = request("coordinator -> peer over tcp: two per node of `pairwise --neighbours`")


class RingOpened(Message, tag="peer.ring_opened/1"):
    """Where the member before must connect to, and what it must show there."""

    about = reply("peer -> coordinator over tcp: one per `OpenRing`")

    address: str
    port: int
    token: bytes
    """Valid once, for this ring."""


class SumRing(Message, tag="peer.sum_ring/1"):
    """Asks a peer to take part in an all-reduce of a ring, for which it has been listening."""

    about = request("coordinator -> peer over tcp: one per `RingOpened`, to all members at once")

    number: int
    """Place of the member in the ring, from 0."""
    size: int
    """Members of the ring."""
    address: str
    """Where the next member listens."""
    port: int
    token: bytes
    num_bytes: int
    """Bytes of the array that is summed; each member rounds down to whole words per peer."""
    limit_s: float
    """The connections are cut then."""


class RingSummed(Message, tag="peer.ring_summed/1"):
    """What a member of a ring has received from the one before it."""

    about = reply("peer -> coordinator over tcp: one per `SumRing`")

    has_reached_next: bool
    duration_s: float
    """Time of the whole all-reduce; 0.0 if it was not finished."""
    bytes_per_s: float
    """At which parts arrived from the member before, the middle one; 0.0 if none did."""
    num_damaged: int
    """Parts that arrived changed."""
    trouble: str
    """Why it was not finished; empty if it was."""
