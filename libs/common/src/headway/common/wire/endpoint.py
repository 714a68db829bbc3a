"""Opening sockets: shared options, CURVE, stale ``ipc`` files, and the errors of a bind."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from pathlib import Path

import zmq
from headway.common.errors import InputError
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import private_folder, sock_root
from headway.common.wire.addresses import each_port
from headway.common.wire.codec import MAX_SOCKET_BYTES
from headway.common.wire.keys import KeyPair, ipc_path, is_public_key
from zmq.utils.monitor import parse_monitor_message

HIGH_WATER_MARK = 256  # messages per peer and direction: at most 256 MiB of the largest ones
_UCRED = struct.Struct("3i")  # pid, uid, gid, as in unix(7)
HANDSHAKE_S = 3.0  # a connection that has not identified itself by then is closed
UNACKNOWLEDGED_S = 10.0
CONNECT_S = 2.0
TCP_OPTIONS = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 5,
    zmq.TCP_KEEPALIVE_INTVL: 2,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.TCP_MAXRT: int(UNACKNOWLEDGED_S * 1000),
    zmq.CONNECT_TIMEOUT: int(CONNECT_S * 1000),
}
"""How long a vanished peer's connection is kept, and how soon a new attempt is made.

An idle connection ends by keepalive after 5 + 2 x 3 s. A connection with unsent data has no
keepalive, and the kernel would retransmit for a quarter of an hour: ``TCP_MAXRT`` ends it once
nothing was acknowledged for 10 s, which also ends one whose reader has left a full window unread
for so long. ``CONNECT_TIMEOUT`` gives up an attempt whose first packet was lost before the kernel's
own pauses (1, 2, 4 ... s) grow long.

ZMTP's own heartbeats would abort the process: their timer can fire on a connection that broke while
its full queue blocked the input (libzmq issues 3937 and 4364)."""


def set_options(opened: zmq.Socket[bytes], endpoint: str, high_water_mark: int) -> None:
    """Set the options of every socket.

    They bound messages and queues, allow no linger, and detect lost machines.
    """
    opened.setsockopt(zmq.LINGER, 0)
    opened.setsockopt(zmq.MAXMSGSIZE, MAX_SOCKET_BYTES)
    opened.setsockopt(zmq.SNDHWM, high_water_mark)
    opened.setsockopt(zmq.RCVHWM, high_water_mark)
    opened.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
    if endpoint.startswith("tcp://"):
        for option, value in TCP_OPTIONS.items():
            opened.setsockopt(option, value)
    if endpoint.startswith("tcp://["):
        opened.setsockopt(zmq.IPV6, 1)


def set_server_keys(opened: zmq.Socket[bytes], keys: KeyPair) -> None:
    opened.curve_server = True
    opened.curve_secretkey = keys.secret
    opened.curve_publickey = keys.public


def set_client_keys(
    opened: zmq.Socket[bytes], keys: KeyPair | None, server_key: bytes | None
) -> None:
    """CURVE towards the holder of ``server_key``; a fresh pair if ``keys`` is None.

    Raises:
        InputError: ``keys`` without ``server_key``, or a malformed key.
    """
    if server_key is None:
        if keys is not None:
            raise InputError(
                "client keys without a server key",
                remedy="pass the server's public key as server_key",
            )
        return
    if not is_public_key(server_key):
        raise InputError(
            "the server key is not a Z85 key of 40 bytes",
            remedy="pass KeyPair.public of the server",
        )
    own = keys or KeyPair.generate()
    opened.curve_serverkey = server_key
    opened.curve_secretkey = own.secret
    opened.curve_publickey = own.public


def bind(opened: zmq.Socket[bytes], endpoint: str) -> tuple[str, int]:
    """Bind; return the resolved endpoint and the descriptor that listens.

    The endpoint has a port instead of 0 or of the range ``LOW-HIGH``; libzmq owns the descriptor.
    An ``ipc`` file gets mode 0600.

    Raises:
        InputError: the address is in use, does not belong to this machine, or is not permitted.
    """
    events = opened.get_monitor_socket(zmq.EVENT_LISTENING)
    try:
        resolved = _bind(opened, endpoint)
        return resolved, int(parse_monitor_message(events.recv_multipart())["value"])
    finally:
        opened.disable_monitor()
        events.close(linger=0)


def bind_again(opened: zmq.Socket[bytes], endpoint: str) -> bool:
    """Bind an ``ipc`` endpoint once more if its file was removed; True if it was.

    Connections that exist stay: nothing is unbound.

    Raises:
        InputError: the folder or the file cannot be made.
    """
    path = ipc_path(endpoint)
    if path is None or path.exists():
        return False
    if not path.parent.exists():
        root = sock_root()
        private_folder(path.parent, up_to=root if root in path.parents else path.parent)
    _bind(opened, endpoint)
    return True


def _bind(opened: zmq.Socket[bytes], endpoint: str) -> str:
    host, _, ports = endpoint.rpartition(":")
    if endpoint.startswith("tcp://") and "-" in ports:
        return _bind_within(opened, host, ports)
    path = ipc_path(endpoint)
    if path is not None:
        _remove_stale(path)
    # libzmq calls the port that the system chooses "*"
    wanted = (
        endpoint[:-1] + "*"
        if endpoint.startswith("tcp://") and endpoint.endswith(":0")
        else endpoint
    )
    try:
        opened.bind(wanted)
        if path is not None:
            path.chmod(0o600)
    except zmq.ZMQError as error:
        raise InputError(
            f"cannot listen on {endpoint}: {error.strerror}", remedy=_bind_remedy(error.errno)
        ) from error
    except OSError as error:
        raise InputError(
            f"cannot listen on {endpoint}: {error.strerror}", remedy="check the folder"
        ) from error
    return opened.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]


def _bind_within(opened: zmq.Socket[bytes], host: str, ports: str) -> str:
    """Bind a free port of the range."""
    for port in each_port(ports):
        try:
            opened.bind(f"{host}:{port}")
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE:
                raise InputError(
                    f"cannot listen on {host}:{port}: {error.strerror}",
                    remedy=_bind_remedy(error.errno),
                ) from error
        else:
            return f"{host}:{port}"
    raise InputError(
        f"cannot listen on {host}: the ports {ports} are all in use",
        remedy="give a larger range (launch.ports), or end what holds them (ss -ltnp)",
    )


def reconnect(opened: zmq.Socket[bytes], endpoint: str) -> None:
    """Drop the connection with everything queued in it, and connect again."""
    opened.disconnect(endpoint)
    opened.connect(endpoint)


def has_listener(endpoint: str) -> bool:
    """Whether a plain connection is accepted at ``endpoint``, for error texts.

    Takes at most 0.2 s.
    """
    path = ipc_path(endpoint)
    try:
        if path is not None:
            return _answers(socket.AF_UNIX, os.fspath(path))
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        family, *_, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )[0]
        return _answers(family, address)
    except (OSError, ValueError):
        return False


def _answers(family: int, address: object) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(address) in (0, errno.EAGAIN)  # type: ignore[arg-type]


def _bind_remedy(code: int | None) -> str:
    if code == errno.EADDRINUSE:
        return (
            "choose another port (0 takes any free one), or end the process that holds it (ss "
            "-ltnp)"
        )
    if code in (errno.EADDRNOTAVAIL, errno.ENODEV):
        return "use an address of this machine (ip addr)"
    if code == errno.ENOENT:
        return "create the folder first"
    return "check the address and the permissions of its folder"


def _remove_stale(path: Path) -> None:
    """Remove a stale socket file; libzmq would silently take over a live one.

    A frozen listener with a pending SIGKILL still accepts connections in the
    kernel; it counts as gone.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise InputError(
            f"{path} exists and is not a socket", remedy="remove it, or choose another path"
        )
    if _answers(socket.AF_UNIX, os.fspath(path)):
        living = [pid for pid in _listeners(path) if not _is_doomed(pid)]
        if living:
            raise InputError(
                f"{path} is in use by process {living[0]}",
                remedy="end it first, or choose another path",
            )
    path.unlink(missing_ok=True)


def _listeners(path: Path) -> list[int]:
    """The processes that listen at a socket's path; those of other users are not seen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        if probe.connect_ex(os.fspath(path)) == 0:
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
            return [_UCRED.unpack(credentials)[0]]
    # its queue is full, as with a frozen process: search the open files of all processes
    import psutil  # takes long to import, and this is rare

    return [
        connection.pid
        for connection in psutil.net_connections("unix")
        if connection.laddr == os.fspath(path) and connection.pid is not None
    ]


def _is_doomed(pid: int) -> bool:
    process = ProcessId.of(pid)
    return process is None or process.is_terminating()
