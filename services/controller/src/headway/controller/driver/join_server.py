"""The socket at which machines join a run; it admits those with a valid token."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from headway.common.config import from_dict
from headway.common.errors import BusyError, ConfigError, InputError
from headway.common.log import get_logger
from headway.common.node.run_dir import RunDir
from headway.common.wire.admission import Admission, KeyFile
from headway.common.wire.keys import KeyPair
from headway.common.wire.loop import Throttle
from headway.common.wire.messages.driver import Join, Joined
from headway.common.wire.server import Later, Server
from headway.controller.driver.join_checks import check_installation, check_introduction, shown
from headway.controller.driver.memory import recall
from headway.controller.journal.journal import Journal
from headway.controller.journal.writer import JournalWriter
from headway.launch.cluster import ClusterFolder
from headway.launch.join import tokens
from headway.launch.join.bundle import Bundle
from headway.launch.join.client import this_machine
from headway.launch.join.facts import CLOCK_LIMIT_S

START_S = 20.0
"""A machine that has joined reports as a node within it."""
RETURN_S = 5.0
"""A living node that a driver before has admitted finds the next one within it."""
OWN_ID = (
    "give each machine an id of its own: rm /etc/machine-id && systemd-machine-id-setup (one that "
    "was rebooted just now asks again by itself)"
)
FACT = "members"
AGENTS = "agents.allowed"
"""In the folder of keys: what the monitor of the driver's node admits."""

log = get_logger("driver")


@dataclass(frozen=True)
class Member:
    """A machine that is a node of the run."""

    uid: str
    boot_id: str
    host: str
    public_key: str
    num_gpus: int = 0
    num_cpus: int = 0
    memory_bytes: int = 0
    shm_bytes: int = 0
    address: str = ""


@dataclass(frozen=True)
class _Pending:
    """A machine that is admitted and answered once the journal has it."""

    member: Member
    reply: Later


def members_of(journal: Journal) -> dict[int, Member]:
    """The nodes that earlier drivers admitted; none if they cannot be read.

    Without those that were evicted and may still run: what revokes a key may not be written.
    """
    memory = recall(journal)
    leaving = {*memory.evicted} - {*memory.released}
    try:
        rows = json.loads(journal.fact(FACT, "{}"))
        members = {int(node): from_dict(Member, row) for node, row in rows.items()}
        return {node: member for node, member in members.items() if node not in leaving}
    except (ConfigError, ValueError, TypeError, AttributeError) as error:
        log.warning("the members of the run cannot be read", error=str(error))
        return {}


class JoinServer:
    """Admits nodes, for as long as the driver leads.

    Args:
        bundle: what a node gets.
        cluster: of the driver's own node, with the monitor's list.
        node: its number.
        keys: the driver's.
        members: those that have joined before.
        admission: of the driver's main socket.
        journal: keeps the members for the next driver.
    """

    is_leaving: Callable[[int], bool] = staticmethod(lambda _: False)
    """Whether a node was taken out of the run, and its machine has not been ended yet."""
    rebooted: Callable[[int], None] = staticmethod(lambda _: None)
    """Called when the machine of a node has joined again after a reboot."""
    is_alive: Callable[[int], bool] = staticmethod(lambda _: False)
    """Whether a node reports."""
    epoch = 0
    """The driver's epoch."""

    @classmethod
    def of(cls, run: RunDir, *rest: Any) -> JoinServer | None:
        """The gate of a run of several machines; None where one machine carries it."""
        return cls(Bundle.load(run.bundle), *rest) if run.bundle.exists() else None

    def __init__(
        self,
        bundle: Bundle,
        cluster: ClusterFolder,
        node: int,
        keys: KeyPair,
        members: dict[int, Member],
        admission: Admission,
        journal: JournalWriter,
    ) -> None:
        self._bundle, self._members, self._admission = bundle, members, admission
        self._journal = journal
        self._pending: dict[int, _Pending] = {}
        self._is_writing = False
        self._throttle = Throttle()
        self._agents = KeyFile(cluster.path / "keys" / AGENTS)
        self._own = this_machine(node, *cluster.public_of("executor"))
        self._members[node] = _member(self._own)
        self._awaited = dict.fromkeys(self._members, time.monotonic() + RETURN_S)
        """Until when a member that does not report may be about to."""
        journal.submit(self._writing())  # the driver's own node has not sent ``Join``
        for member in self._members.values():
            admission.admit(member.public_key.encode())
        self._list_agents()
        self.server = Server(bundle.network.endpoint, {Join: self._join}, keys=keys)

    def boot_of(self, node: int) -> str:
        """The boot id that the node's machine joined with, empty for one that has not joined."""
        member = self._members.get(node)
        return member.boot_id if member is not None else ""

    def revoke(self, node: int) -> None:
        """Stop admitting the node's key."""
        member, pending = self._members.pop(node, None), self._pending.pop(node, None)
        if pending is not None:
            pending.reply.answer(_evicted(node))
        if member is not None:
            self._admission.revoke(member.public_key.encode())
            self._list_agents()
        if member is not None or pending is not None:
            self._journal.submit(self._writing())

    def _join(self, message: Join, _peer: bytes) -> Joined | Later:
        node = message.node
        try:
            self._check(message)
        except InputError as error:
            self._complain(message, error.message)
            raise
        member = _member(message)
        if self._members.get(node) == member:
            self._list_agents()  # which may have failed before
            return self._joined(node)
        if self._journal.trouble:
            raise _unrecorded(self._journal.trouble)
        self._awaited[node] = time.monotonic() + START_S
        self._pending[node] = _Pending(member, Later())
        self._record()
        return self._pending[node].reply

    @functools.cached_property
    def _answer(self) -> str:
        """Made once: it names all machines, and each of them asks for it."""
        return self._bundle.to_json()

    def _joined(self, node: int) -> Joined:
        return Joined(node=node, epoch=self.epoch, bundle=self._answer)

    def _admit(self, joined: dict[int, _Pending]) -> None:
        rebooted = []
        for node, one in joined.items():
            member, former = one.member, self._members.get(node)
            self._members[node] = member
            if former is not None:
                if former.public_key != member.public_key:
                    self._admission.revoke(former.public_key.encode())
                if former.boot_id != member.boot_id:
                    rebooted.append(node)
            self._admission.admit(member.public_key.encode())
            log.info("a node has joined", node=node, host=member.host, address=member.address)
        self._list_agents()
        for node in rebooted:
            self.rebooted(node)
        for node, one in joined.items():
            one.reply.answer(self._joined(node))

    def _complain(self, message: Join, reason: str) -> None:
        """Log a refusal; any client with the driver's public key can cause thousands a second."""
        is_known = 0 <= message.node < self._bundle.nodes
        suppressed = self._throttle.admit(str(message.node) if is_known else "no such node")
        if suppressed is not None:
            who = {"node": message.node, "host": shown(message.host)}
            log.warning("refused a node", **who, reason=reason, suppressed=suppressed)

    def _check(self, message: Join) -> None:
        """Check that the machine is to be admitted.

        Raises:
            InputError: why the machine is not admitted.
            BusyError: not yet; it asks again.
        """
        node, bundle = message.node, self._bundle
        check_introduction(message)
        _check_token(message, bundle)
        check_installation(message, self._own)
        if not 0 <= node < bundle.nodes:
            raise InputError(
                f"the run has only {bundle.nodes} nodes, so there is no node {node}",
                remedy="start it with more nodes or spares",
            )
        if self.is_leaving(node):
            raise _evicted(node)
        if node in self._pending:
            raise BusyError(
                f"node {node} has asked to join, and the journal has not recorded it yet",
                remedy="it will retry",
            )
        if not abs(off_s := message.unix_s - time.time()) <= CLOCK_LIMIT_S:  # nor may it be NaN
            raise InputError(
                f"the clock of {message.host} is {off_s:+.0f} s off the driver's clock",
                remedy="set it (chrony or ntp), then start the node again",
            )
        self._check_identity(message)
        former, key = self._members.get(node), message.public_key
        is_known = self._admission(key.encode()) or any(
            one.member.public_key == key for one in self._pending.values()
        )
        # Otherwise evicting one of them, which revokes its key, would lock out the other.
        if (former is None or former.public_key != key) and is_known:
            raise InputError(
                f"{message.host} sent the public key of another node or service of the run, {key}",
                remedy="its folder is a copy: remove it there, then start the node again",
            )

    def _check_identity(self, message: Join) -> None:
        """A machine is one node at a time, and takes no place of another machine that reports.

        Machines that were copied from one image may share an id. Their boots differ, but so do two
        boots of one machine: only that the node still reports shows that it is another machine.

        Raises: as ``_check``.
        """
        node, host = message.node, message.host
        former = self._members.get(node)
        if former is not None and self.is_alive(node):
            if former.uid != message.uid:
                raise InputError(
                    f"node {node} is another machine already, {former.host}, which reports",
                    remedy="list each machine once",
                )
            if former.boot_id != message.boot_id:
                raise BusyError(
                    f"{host} has the machine id of {former.host}, which still reports as node "
                    f"{node}",
                    remedy=OWN_ID,
                )
        for other, member in self._known().items():
            if other == node or member.uid != message.uid:
                continue
            is_alive = self.is_alive(other)
            if is_alive and member.boot_id == message.boot_id:
                raise InputError(
                    f"{host} is node {other} of the run already", remedy="list each machine once"
                )
            if is_alive or time.monotonic() < self._awaited[other]:
                kind = InputError if is_alive else BusyError
                raise kind(
                    f"{host} has the machine id of {member.host}, which is node {other} of the run",
                    remedy=OWN_ID,
                )

    # ---- journal and monitor ------------------------------------------------------------------
    def _record(self) -> None:
        """Write the pending members. Each is admitted once the next driver would know it, too.

        One write at a time: what joins meanwhile is in the next one, so that a rack that returns
        takes a few of them.
        """
        if self._is_writing or not self._pending:
            return
        written, self._is_writing = dict(self._pending), True

        def then(_result: object, error: str) -> None:
            self._is_writing = False
            # without those that were evicted meanwhile
            ended = {node: one for node, one in written.items() if self._pending.get(node) is one}
            for node, one in ended.items():
                del self._pending[node]
                if error:
                    one.reply.answer(_unrecorded(error))
            if not error:
                self._admit(ended)
            self._record()

        self._journal.submit(self._writing(), then)

    def _known(self) -> dict[int, Member]:
        return self._members | {node: one.member for node, one in self._pending.items()}

    def _writing(self) -> Callable[[Journal], None]:
        """Writes the members of now, on the journal's thread."""
        rows = {str(node): asdict(member) for node, member in self._known().items()}
        return lambda journal: journal.set_facts(**{FACT: json.dumps(rows)})

    def _list_agents(self) -> None:
        try:
            self._agents.write(member.public_key.encode() for member in self._members.values())
        except OSError as error:
            log.error("cannot list the new node for the monitor", reason=str(error))

    def close(self) -> None:
        self.server.close()


def _member(message: Join) -> Member:
    return Member(
        uid=message.uid,
        boot_id=message.boot_id,
        host=message.host,
        public_key=message.public_key,
        num_gpus=message.num_gpus,
        num_cpus=message.num_cpus,
        memory_bytes=message.memory_bytes,
        shm_bytes=message.shm_bytes,
        address=message.address,
    )


def _evicted(node: int) -> BusyError:
    return BusyError(
        f"node {node} was evicted, and its processes have not all ended yet",
        remedy="start it again later; `headway logs` shows what is left",
    )


def _unrecorded(why: str) -> BusyError:
    return BusyError(f"the node cannot be recorded: {why}", remedy="it will retry")


def _check_token(message: Join, bundle: Bundle) -> None:
    try:
        tokens.check(message.token, bundle.secret, bundle.run_id, message.node)
    except tokens.TokenError as error:
        raise InputError(error.message, remedy=error.remedy) from None
