"""CURVE key pairs in 0600 files, and which endpoints may be used without keys."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from headway.common.errors import CorruptError, InputError
from headway.common.node.files import check_private

# sun_path holds 108 bytes with its terminator (unix(7)); the rest is reserved for temporary names
MAX_IPC_PATH_BYTES = 100
# the alphabet of Z85 (ZeroMQ RFC 32)
_KEY = re.compile(rb"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\[\]/;:]+):(\d{1,5}|\d{1,5}-\d{1,5}|\*)")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, both halves as 40 bytes of Z85. Only ``public`` may be shown."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> KeyPair:
        public, secret = zmq.curve_keypair()
        return cls(public, secret)

    def to_text(self) -> bytes:
        """What a key file holds."""
        return b"# Headway CURVE key pair; keep it secret\npublic = %s\nsecret = %s\n" % (
            self.public,
            self.secret,
        )

    def save(self, path: Path) -> None:
        """Write a new file of mode 0600; afterwards it is complete and on disk, or absent.

        Raises:
            InputError: ``path`` exists (a key is never overwritten) or cannot be written.
        """
        # machines that share the folder may have processes of one number
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "wb") as file:
                os.fchmod(handle, 0o600)
                file.write(self.to_text())
                file.flush()
                os.fsync(handle)
            try:
                os.link(temporary, path)  # unlike a rename, a link refuses to replace
            finally:
                temporary.unlink()
        except FileExistsError as error:
            raise InputError(
                f"a key file {path} exists already", remedy="load it, or remove it first"
            ) from error
        except OSError as error:
            raise InputError(
                f"cannot write the key file {path}: {error.strerror}", remedy="check the folder"
            ) from error

    @classmethod
    def load_or_make(cls, path: Path) -> KeyPair:
        """The pair in the file, which is made where it is absent. Raises as ``save``, ``load``."""
        if not path.exists():
            with contextlib.suppress(InputError):  # another process was faster
                cls.generate().save(path)
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> KeyPair:
        """Read what ``save`` wrote.

        Raises:
            InputError: no such file, or others than its owner may read it.
            CorruptError: not a key pair, or two halves of different pairs.
        """
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(4096)
        except OSError as error:
            raise InputError(
                f"cannot read the key file {path}: {error.strerror}", remedy="check its path"
            ) from error
        check_private(path, mode)
        values = dict(re.findall(rb"^(public|secret) = (\S+)$", text, re.MULTILINE))
        pair = cls(values.get(b"public", b""), values.get(b"secret", b""))
        if not (
            is_public_key(pair.public)
            and _KEY.fullmatch(pair.secret)
            and zmq.curve_public(pair.secret) == pair.public
        ):
            raise CorruptError(
                f"{path} does not hold a CURVE key pair",
                remedy="create a new pair and distribute its public key again",
            )
        return pair


def is_public_key(key: bytes) -> bool:
    """Whether ``key`` has the form of a Z85 key of 40 bytes."""
    return _KEY.fullmatch(key) is not None


def check_endpoint(endpoint: str, keys: KeyPair | bytes | None) -> None:
    """Refuse an endpoint that is malformed or exposed.

    An endpoint is exposed if it means every interface of a machine, or is reachable from outside
    without CURVE keys.

    Without keys only literal loopback addresses are accepted: a host name or an interface name may
    mean any address.

    Raises:
        InputError: says what to write instead.
    """
    scheme, _, rest = endpoint.partition("://")
    if scheme == "inproc" and rest:
        return
    if scheme == "ipc":
        _check_ipc(endpoint, rest)
    elif scheme == "tcp":
        _check_tcp(endpoint, keyed=keys is not None)
    else:
        raise InputError(
            f"no such endpoint: {endpoint!r}", remedy="write ipc://PATH or tcp://ADDRESS:PORT"
        )


def ipc_path(endpoint: str) -> Path | None:
    """The socket file of an ``ipc://`` endpoint, None for other endpoints."""
    return Path(endpoint.removeprefix("ipc://")) if endpoint.startswith("ipc://") else None


def _check_ipc(endpoint: str, path: str) -> None:
    if not path.startswith("/") or "\0" in path:
        raise InputError(
            f"no such endpoint: {endpoint!r}",
            remedy="write ipc:// and an absolute path (abstract names have no permissions)",
        )
    length = len(os.fsencode(path))
    if length > MAX_IPC_PATH_BYTES:
        raise InputError(
            f"the socket path {path} has {length} bytes, at most {MAX_IPC_PATH_BYTES} fit",
            remedy="choose a shorter folder (HEADWAY_SOCK_ROOT)",
        )


def _check_tcp(endpoint: str, *, keyed: bool) -> None:
    match = _TCP.fullmatch(endpoint)
    ports = [] if match is None or match[2] == "*" else [int(p) for p in match[2].split("-")]
    if match is None or ports != sorted(ports) or any(port > 65535 for port in ports):
        raise InputError(
            f"no such endpoint: {endpoint!r}",
            remedy="write tcp://ADDRESS:PORT, port 0 for any free one, or tcp://ADDRESS:LOW-HIGH",
        )
    host = match[1].strip("[]")
    if _is_every_interface(host):
        raise InputError(
            f"{endpoint} means every interface of a machine",
            remedy="name one address or interface: nothing listens on all of them",
        )
    if not keyed and not _is_loopback(host):
        raise InputError(
            f"{endpoint} can be reached from other machines and has no keys",
            remedy="give it CURVE keys, or use tcp://127.0.0.1:PORT",
        )


def _is_every_interface(host: str) -> bool:
    """Whether ``host`` means every interface, as libzmq reads it.

    libzmq takes ``0`` or ``0x0`` for an address, too.
    """
    if host == "*":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        with contextlib.suppress(OSError):
            return not any(socket.inet_aton(host))
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_unspecified or (mapped is not None and mapped.is_unspecified)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
