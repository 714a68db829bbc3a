"""What the monitor receives of every step of every rank: sums, not records.

The records themselves stay on their node; a summary of a step has about a hundredth of their size.
"""

from __future__ import annotations

from typing import NamedTuple

from headway.common.wire.about import note
from headway.common.wire.message import Message


class GroupSum(NamedTuple):
    """What a rank recorded of one of its groups in one step; a tuple, as there may be many."""

    line: int
    """Line of the group table; ``plan.collectives`` decodes its kind and end of messages."""
    number: int
    """The group's lowest rank; of messages, the rank that sends them; -1 in an older generation."""
    num: int
    """Collectives or messages. Those of tensor parallelism are recorded in some steps only."""
    wait_us: int
    """Time that the main thread waited for them."""
    nbytes: int
    first_us: int
    """When the rank entered the first one, since the beginning of its step."""
    last_us: int


class StepSum(NamedTuple):
    """How a rank spent one step, in microseconds."""

    rank: int
    generation: int
    step: int
    sequence: int
    """Sequence number of the step's flight record."""
    start_ns: int
    """On the node's monotonic clock."""
    duration_us: int
    own_us: int
    """Forward and backward passes, which wait for no other stage or replica."""
    data_us: int
    snapshot_us: int
    """Waiting until the snapshot under way is sealed."""
    collection_us: int
    """Full garbage collections."""
    norm_us: int
    optimizer_us: int
    groups: tuple[GroupSum, ...]
    num_passes: int = 0
    """Passes that ``own_us`` is the time of: a replica may have more than others. 0 if unknown."""


class StepSummary(Message, tag="summaries.step_summary/1"):
    """The steps that the ranks of a node have finished since the message before."""

    about = note(
        "agent -> monitor over tcp: with a beat, when a step has ended",
        "counted by the gap in `sequence`; the records stay on the node",
    )

    run_id: str
    node: int
    pid: int
    """Process id of the agent; another one counts from 1 again."""
    boot_id: str
    """The boot whose clock the times are of: how far it may be off is in the run's journal."""
    sequence: int
    """Counts the summaries of this agent, from 1 on."""
    num_dropped: int
    """Steps left out since the summary before, because too many waited for the monitor."""
    steps: tuple[StepSum, ...]
