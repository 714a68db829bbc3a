"""How a machine joins a run: it finds the driver through its lease and asks to become a node."""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path

from headway.common import installed
from headway.common.errors import BusyError, DeadlineError
from headway.common.node.machine import boot_id, machine_uid
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import Join, Joined
from headway.launch.join.bundle import Bundle
from headway.launch.join.needs import num_gpus
from headway.launch.join.ticket import Ticket
from headway.launch.lease.base import Holder
from headway.launch.lease.choose import lease_of

CALL_S = 5.0
LOOK_S = 0.1
AGAIN_S = 1.0
"""Pause before the next request to a driver that did not respond or was busy."""


def join(ticket: Ticket, keys: KeyPair, *, limit_s: float) -> Bundle:
    """Send ``Join`` to the driver of the run until it is answered.

    Raises:
        RemoteError: the driver refuses this machine; the message says why.
        DeadlineError: no driver responds within ``limit_s``, or it stays busy, for example
            because the node's former processes are still being killed.
        InputError: the reply does not describe a run.
    """
    lease = lease_of(Path(ticket.control))
    deadline = time.monotonic() + limit_s
    trouble = f"no driver has announced itself in {ticket.control}"
    remedy = "see that this machine reaches that address, and its firewall the port"
    while time.monotonic() < deadline:
        try:
            holder = lease.look().holder
        except OSError as error:
            holder, trouble = None, f"the driver's lease cannot be read: {error}"
        if holder is not None and holder.join_endpoint:
            try:
                return _ask(holder, keys, ticket)
            except BusyError as error:
                trouble, remedy = error.message, error.remedy
                time.sleep(AGAIN_S)
            except DeadlineError:
                trouble = f"the driver does not answer at {holder.join_endpoint}"
                time.sleep(AGAIN_S)
        time.sleep(max(LOOK_S, lease.look_s))
    raise DeadlineError(
        f"node {ticket.node} has not joined run {ticket.run_id} within {limit_s:.0f} s: {trouble}",
        remedy=remedy,
    )


def _ask(holder: Holder, keys: KeyPair, ticket: Ticket) -> Bundle:
    address, server_key = own_address(holder.join_endpoint), holder.server_key.encode()
    question = this_machine(ticket.node, keys.public, token=ticket.token, address=address)
    with Client(holder.join_endpoint, keys=keys, server_key=server_key) as client:
        joined = client.call(question, Joined, timeout_s=CALL_S)
    return Bundle.from_json(joined.bundle, source="what the driver sent")


def this_machine(node: int, public_key: bytes, *, token: str = "", address: str = "") -> Join:
    """The machine as it introduces itself."""
    return Join(
        node=node,
        token=token,
        uid=machine_uid(),
        boot_id=boot_id(),
        host=socket.gethostname(),
        public_key=public_key.decode(),
        version=installed.version(),
        num_gpus=num_gpus(),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        shm_bytes=shutil.disk_usage("/dev/shm").total,
        unix_s=time.time(),
        source=installed.source(),
        torch=installed.torch(),
        address=address,
    )


def own_address(endpoint: str) -> str:
    """From which this machine reaches a TCP endpoint; empty if it has no way there.

    Nothing is sent.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        family, kind, *_, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return ""
