"""What the dataloader receives and answers over its node's ``ipc`` ROUTER.

Batches travel in rings.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from headway.common.wire.about import PartOf, reply, request
from headway.common.wire.message import Message

Split = Literal["train", "validation"]


class StreamSpec(Message, tag="dataloader.stream_spec/1"):
    """Everything that decides the batches of one stream.

    Its JSON is stored in the ring.

    The global batch of step s is samples ``[start_sample + s*GB, start_sample + (s+1)*GB)``; its
    micro-batch j, ``micro_batch_size`` samples, belongs to dp rank ``j % dp_size`` as its local
    ``j // dp_size``.
    """

    about = PartOf("OpenStream", "StreamStatus")

    path: str
    """Absolute: a prepared folder, or the prefix of one ``.bin``/``.idx`` pair
    (training split only)."""
    split: Split
    seed: int
    seq_len: int
    micro_batch_size: int
    num_micro_batches: int
    """Per dp rank; ``micro_batch_size * num_micro_batches * dp_size`` is the global batch size."""
    global_batch_size: int
    dp_rank: int
    dp_size: int
    generation: int = 0
    start_sample: int = 0
    """Global samples consumed before this stream."""
    num_samples: int = 0
    """Above 0: Megatron's order for a run of this many samples, counted from sample 0. The stream
    ends with its last whole global batch. 0: endless, with each epoch shuffled separately.
    """
    cycle_samples: int = 0
    """Above 0: after this many samples the stream restarts at ``start_sample``, for evaluation."""
    ring_slots: int = 16
    num_readers: int = 1
    """The exact number of readers: a missing reader keeps the ring full."""
    fingerprint: str = ""
    """Fingerprint of the token file and version of its order, ``<16 hex>-order<version>``. Other
    data and another order are refused; the daemon adds it to a spec without one."""
    job: str = ""
    """Streams of different jobs do not meet: neither their rings nor their generations."""


class OpenStream(Message, tag="dataloader.open_stream/1"):
    """Asks for a ring of batches. Rings of older generations are removed."""

    about = request(
        "worker -> dataloader over ipc: one per generation and split",
        "the client sends it again and gets the same ring",
    )

    spec: StreamSpec
    process: str = ""
    """``p<pid>-<start ticks>`` of the only reader of a stream without a job. If another living
    process reads the stream of that place, this is the job."""


class StreamOpened(Message, tag="dataloader.stream_opened/1"):
    """The ring is ready to be opened."""

    about = reply("dataloader -> worker over ipc: one per `OpenStream`")

    path: str
    """The ring's file."""
    fingerprint: str
    job: str = ""
    """The ring's job, to be repeated in ``CloseStream``."""


class CloseStream(Message, tag="dataloader.close_stream/1"):
    """The ring is no longer read and can be removed. May also be sent as a note."""

    about = request(
        "worker -> dataloader over ipc: once per ring",
        "the daemon checks twice a second for rings that all readers have left",
    )

    generation: int
    dp_rank: int
    split: Split
    if_left: bool = False
    """Close only if every reader has opened the ring and left it; a ring made since then stays."""
    job: str = ""


class StreamClosed(Message, tag="dataloader.stream_closed/1"):
    """Confirms that the ring is closed."""

    about = reply("dataloader -> worker over ipc: one per `CloseStream`")


class GetDataStatus(Message, tag="dataloader.get_data_status/1"):
    """Asks which rings the daemon fills and how far it is."""

    about = request("any client -> dataloader over ipc: on demand")


class StreamStatus(Message, tag="dataloader.stream_status/1"):
    """One ring and how far it is filled."""

    about = PartOf("DataStatus")

    ring: str
    spec: StreamSpec
    filled: int
    """Slots published since the ring was made."""
    released: int
    """Slots that every reader has given back."""
    next_sample: int
    error: str = ""
    """Why the ring is not being filled; names the file that is damaged or cannot be read."""
    ended: bool = False
    """Whether all slots of a stream with ``num_samples`` are published."""


class DataStatus(Message, tag="dataloader.data_status/1"):
    """All rings of the daemon and its counters."""

    about = reply("dataloader -> any client over ipc: one per `GetDataStatus`")

    streams: tuple[StreamStatus, ...]
    num_batches: int
    """Batches filled by this process."""
    num_tokens: int
    opening: dict[str, float] = msgspec.field(default_factory=dict)
    """Path of the data that are being opened for a stream -> for how many seconds."""
