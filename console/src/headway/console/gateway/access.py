"""What a console needs to reach a gateway, in a file that its user copies."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headway.common.config import from_dict
from headway.common.errors import ConfigError, CorruptError, InputError
from headway.common.node.files import check_private, replace_file
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair, check_endpoint, is_public_key


@dataclass(frozen=True)
class Access:
    """Where a gateway listens, and the key pair that it admits."""

    address: str
    """``tcp://ADDRESS:PORT``"""
    server_key: str
    public: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        check_endpoint(self.address, self.server_key.encode())
        if not all(is_public_key(key.encode()) for key in (self.server_key, self.public)):
            raise ConfigError(
                "a key is not a CURVE key", remedy="copy the file from the gateway again"
            )

    @classmethod
    def new(cls, address: str, server_key: bytes, keys: KeyPair) -> Access:
        return cls(address, server_key.decode(), keys.public.decode(), keys.secret.decode())

    @property
    def keys(self) -> KeyPair:
        """The console's."""
        return KeyPair(self.public.encode(), self.secret.encode())

    def client(self) -> Client:
        """A connection to the gateway."""
        return Client(self.address, keys=self.keys, server_key=self.server_key.encode())

    def save(self, path: Path) -> None:
        """Write the file, readable by its owner alone. Raises OSError."""
        replace_file(path, json.dumps(asdict(self), indent=1) + "\n")
        path.chmod(0o600)

    @classmethod
    def load(cls, path: Path) -> Access:
        """Read the key file of a gateway.

        Raises:
            InputError: the file cannot be read, or others may read it.
            CorruptError: it is not the key file of a gateway.
        """
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(1 << 16)
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror}",
                remedy="copy the key file of `headway gateway` here",
            ) from error
        check_private(path, mode)
        try:
            return from_dict(cls, json.loads(text))
        except (InputError, ValueError, TypeError, AttributeError) as error:
            raise CorruptError(
                f"{path} is not the key file of a gateway: {error}",
                remedy="copy it from the gateway's machine again",
            ) from error
