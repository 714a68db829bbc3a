"""The driver's own events and actions.

Everything else it decides on is a message of ``headway.common``.

Actions that may fail come back as ``Done`` or ``Failed``; until then their effect counts as not
there. ``Send`` and ``Log`` never come back: what they cause is repeated until its effect shows, or
is kept by the journal until it can be written.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from headway.common.decide import Action, Event
from headway.common.plan.topology import Chain, Topology
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import NodeBeat, Relay, Seals, WorkerGone
from headway.common.wire.messages.worker import Steer
from headway.controller.decisions.machines.machine_orders import KeptOrder
from headway.launch.engine import Replaces


# ---- what happens -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Tick(Event):
    """Time passed; time limits are looked at and unanswered messages are sent again."""


@dataclass(frozen=True)
class DurableFound(Event):
    """The answer to ``FindDurable``: the newest complete checkpoint as (step, folder), or None.

    ``trouble`` says why that could not be found out.
    """

    checkpoint: tuple[int, str] | None
    trouble: str = ""
    only: int = -1
    """Copied from the question."""


@dataclass(frozen=True)
class ExecutorEnded(Event):
    """The engine knows that the node's executor has ended.

    It is started again without waiting for the node to fall silent.
    """

    node: int


@dataclass(frozen=True)
class NodeRebooted(Event):
    """The node's machine has joined again after a reboot: its workers and their memory are gone."""

    node: int


@dataclass(frozen=True)
class CommandQueued(Event):
    """A command of the user is in the journal and is to be applied by all ranks."""

    steer: Steer


@dataclass(frozen=True)
class EvictNode(Event):
    """The user wants the node out of the run."""

    node: int


@dataclass(frozen=True)
class CheckWanted(Event):
    """A person wants a node's machine checked."""

    node: int


@dataclass(frozen=True)
class DrainNode(Event):
    """The node will end: it is to leave the run after a checkpoint, or when ``notice_s`` is over.

    The command to make that checkpoint was given to the ranks.
    """

    node: int
    notice_s: float
    is_announced: bool = False
    """The node itself announces its end: its machine is taken away, and not replaced by us."""


@dataclass(frozen=True)
class VerdictReceived(Event):
    """An open verdict of the monitor, and what the table of responses makes of it.

    ``response`` is ``replace_worker``, ``kill_worker``, ``restart_ranks``, ``restart_service``,
    ``replace_node``, ``stop_run`` or ``observe``. It repeats until an ``Answer`` with a text was
    given.
    """

    id: str
    revision: int
    kind: str
    response: str
    node: int
    pid: int = 0
    rank: int = -1
    generation: int = -1
    service: str = ""
    detail: str = ""
    silence_s: float = 0.0
    """How long nothing had moved when a hang that may still pass was named."""
    why: str = ""
    """What a hung rank has not begun, and where it is in its program."""


# ---- what to do -------------------------------------------------------------------------------
@dataclass(frozen=True)
class Send(Action):
    """Send a note to a node's executor."""

    node: int
    message: Message


@dataclass(frozen=True)
class Answer(Action):
    """Inform the monitor of what was done about a verdict."""

    id: str
    revision: int
    taken: str


@dataclass(frozen=True)
class BeginGeneration(Action):
    """Record the generation before it is sent to any worker; its number is never used again."""

    generation: int
    rank_nodes: dict[int, int]
    restored_step: int
    """What the checkpoint store holds beyond it belongs to a future that will not happen."""


@dataclass(frozen=True)
class FindDurable(Action):
    """Look for the newest complete checkpoint of any step but ``bad``.

    Answered by ``DurableFound``.
    """

    bad: tuple[int, ...] = ()
    marked: int = -1
    """A folder without a checkpoint must hold the mark of this generation, or it is another one."""
    only: int = -1
    """Look for the checkpoint of this step alone; -1 looks for the newest."""


@dataclass(frozen=True)
class CheckCheckpoint(Action):
    """Read the whole checkpoint of ``step``, before a rollback gives up anything newer.

    Comes back as ``Failed`` with ``is_final`` if it is absent or damaged.
    """

    step: int


@dataclass(frozen=True)
class AwaitCheckpoint(Action):
    """Look for a complete checkpoint of a later step than ``after``.

    ``Failed`` while there is none.
    """

    after: int


@dataclass(frozen=True)
class RestartNode(Action):
    """Have the engine end the node's executor if it still runs, and start it again."""

    node: int


@dataclass(frozen=True)
class ReleaseNode(Action):
    """Have the engine take the machine away for good."""

    node: int


@dataclass(frozen=True)
class ReplaceMachine(Action):
    """Have the engine bring another machine for the node, which may take minutes.

    ``Done.note`` says what remains to be known of the one before.
    """

    node: int
    reason: str
    number: int
    """Counts the tries of this driver; answers to older ones do not count."""


@dataclass(frozen=True)
class Remember(Action):
    """Keep what a successor must know.

    That is the brake's counts, lost and evicted nodes, and bad checkpoints.
    """

    memory: Memory


@dataclass(frozen=True)
class Finish(Action):
    """The run is over: ``finished``, ``stopped`` or ``failed``."""

    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Memory:
    """What outlives a driver beside generations and commands. Holds only what JSON can."""

    crashes: tuple[tuple[str, int, int], ...] = ()
    """(signature, "" for any; step gone back to; count)."""
    lost: tuple[int, ...] = ()
    """Nodes that were given up; one that reports again becomes a spare."""
    evicted: tuple[int, ...] = ()
    bad_checkpoints: tuple[int, ...] = ()
    """Steps of checkpoints that cannot be restored."""
    marked: int = -1
    """Newest generation that is recorded in the checkpoints folder."""
    bad_snapshots: tuple[tuple[int, int], ...] = ()
    """(rank, step) of snapshots that do not match their digest."""
    released: tuple[int, ...] = ()
    """Nodes whose machine the engine has taken away; those of other evicted nodes are asked for
    again."""
    causes: tuple[tuple[str, str], ...] = ()
    """(signature, sentence) of failures that the brake counts when the next generation begins."""
    excluded: tuple[tuple[int, str, int, int], ...] = ()
    """(node, bar, incarnation and pid of its executor then) of lost nodes
    that may not return at their next beat."""
    losses: tuple[tuple[int, int], ...] = ()
    """(node, how often it was given up)."""
    failures: tuple[tuple[int, int, int, str, bool, int], ...] = ()
    """Which nodes' ranks have failed within the hour, in the form of ``Failures.kept``."""
    waited_s: float = 0.0
    """How long a node with ranks has been missing, in whole minutes."""
    recoveries: tuple[float, ...] = ()
    """Seconds that the newest recoveries took."""
    rollback: tuple[int, int] | None = None
    """(step of the checkpoint that the user wants back, newest generation when it was asked for),
    until the run steps from there."""
    rollbacks: int = 0
    """Sequence of the newest rollback that was begun or given up."""
    spike: int = 0
    """Position of the data behind a spike from which the run goes back, until it steps there; 0
    without one."""
    passes: tuple[tuple[int, int, int], ...] = ()
    """(step of a checkpoint, position of the data from which training continues there, how often
    the run went back to it because of a spike)."""
    drains: tuple[tuple[int, int, float], ...] = ()
    """(node, a checkpoint of a later step than this is waited for, seconds of notice) of nodes that
    are about to leave; a successor gives the whole notice again."""
    answered: int = 0
    """Newest command that every rank has carried out; evaluations and samples up to it are not made
    again."""
    machine_orders: tuple[KeptOrder, ...] = ()
    """Other machines that are on order or will be ordered again, as ``MachineOrders.kept``."""
    machines_ordered: tuple[float, ...] = ()
    """When machines were ordered within the last day, wall-clock time."""
    machine_notes: tuple[tuple[int, str], ...] = ()
    """(node, what remains to be said of a machine that was replaced)."""
    leaving: tuple[int, ...] = ()
    """Nodes whose machines somebody else takes care of.

    They announced their own end, or were drained for maintenance."""

    def reopened(self) -> Memory:
        """Return what still holds when a run continues after its end.

        By then checkpoints may be repaired, nodes replaced, and the cause of spikes removed. No
        machine is ordered for what was taken out before: a person has had the time to see to it,
        and a new allocation has other machines.
        """
        passes = tuple((step, samples, 0) for step, samples, _ in self.passes)
        return dataclasses.replace(
            self,
            bad_checkpoints=(),
            drains=(),
            passes=passes,
            machine_orders=(),
            machine_notes=(),
            leaving=self.released,
        )


@dataclass(frozen=True)
class Start:
    """All that a driver begins with: with the events that follow, it determines every decision."""

    run_id: str
    steps: int
    rank_nodes: dict[int, int]
    nodes: int
    generation: int = -1
    commands: tuple[Steer, ...] = ()
    epoch: int = 0
    memory: Memory = field(default_factory=Memory)
    grace_s: float = 0.0
    """How much longer than usual nodes may take until their first beat."""
    source: str = ""
    """Digest of the source that this driver's machine has; empty: any worker will do."""
    former: int = -1
    """Node of the driver before, which fell silent with it; -1 if that runs on."""
    former_silent_s: float = 0.0
    """How long ago that was, at least."""
    snapshot_every: int = 1
    """1 also if the ranks measure it."""
    """Steps between two snapshots in memory."""
    checks_nodes: bool = False
    """Machines are checked before the run relies on them."""
    check_limit_s: float = 240.0
    """How long a check may take until a beat has its result, then it counts as not applicable."""
    is_on_gloo: bool = False
    """The ranks communicate over gloo, which ends a collective at ``group_timeout_s`` itself."""
    link_wait_s: float = 0.0
    """How long ranks may make no progress because a link is away; 0 if that is not provided for."""
    replaces: Replaces = "nothing"
    """Which machines the engine can replace."""
    unix_s: float = 0.0
    """The wall-clock time at which the driver begins."""
    switches: tuple[Chain, ...] = ()
    """The switches above each node, the top one first; empty where they are not known."""


def topology_of(start: Start) -> Topology:
    """The network of the run's nodes; a node whose switches are not given is at no known place."""
    return Topology((*start.switches, *((),) * (start.nodes - len(start.switches))))


Input = Event | NodeBeat | Relay | Seals | WorkerGone
"""What a decision may rest on."""
