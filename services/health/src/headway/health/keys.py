"""The key pairs of monitor and agents: files in the cluster's key folder, one for each role."""

from __future__ import annotations

import contextlib
from pathlib import Path

from headway.common.errors import InputError
from headway.common.wire.keys import KeyPair


def key_of(folder: Path, role: str) -> KeyPair:
    """The pair in ``ROLE.key``, role ``monitor`` or ``agent``; created if it does not exist.

    Creating a cluster has written the files already. Without a cluster, the monitor or agent that
    starts first creates them.

    Raises:
        InputError: the file cannot be read or created, or is readable by other users. CorruptError:
            it is not a key pair.
    """
    path = folder / f"{role}.key"
    if not path.exists():
        with contextlib.suppress(InputError):  # another process was faster
            KeyPair.generate().save(path)
    return KeyPair.load(path)
