"""Checks that what a machine sends in ``Join`` can be stored, compared and printed safely."""

from __future__ import annotations

import re

from headway.common.errors import InputError
from headway.common.wire.keys import is_public_key
from headway.common.wire.messages.driver import Join

_NAME = re.compile(r"[!-~]{1,255}")
"""No spaces, control characters or escapes, which would change the lines that show it."""
_SHOWN = 40
_SAME = "use an unchanged Headway"
_INSTALLED = (
    ("Headway", "version", "install the same version on each machine"),
    ("Headway's source", "source", "install the same commit on each machine"),
    ("torch", "torch", "install the same torch on each machine"),
)


def check_introduction(message: Join) -> None:
    """Check that all fields of a join can be stored, compared and printed.

    Raises:
        InputError: names the field, its value and what to do.
    """
    for name, remedy in (
        ("host", "give the machine a host name of letters, digits, - and ."),
        ("uid", "write the machine's /etc/machine-id again (systemd-machine-id-setup)"),
        ("version", _SAME),
    ):
        if not _NAME.fullmatch(getattr(message, name)):
            raise _refusal(message, name, "1 to 255 printable ASCII characters", remedy)
    for name in ("boot_id", "source", "torch", "address"):  # empty: it is not known there
        if getattr(message, name) and not _NAME.fullmatch(getattr(message, name)):
            raise _refusal(message, name, "at most 255 printable ASCII characters", _SAME)
    for name in ("num_gpus", "num_cpus", "memory_bytes", "shm_bytes"):
        if getattr(message, name) < 0:
            raise _refusal(message, name, "0 or more", _SAME)
    if not is_public_key(message.public_key.encode()):
        raise InputError("the node sent no public key", remedy=_SAME)


def check_installation(message: Join, ours: Join) -> None:
    """Check that the machine that joins has the same installation as the driver's.

    Raises:
        InputError: what is installed there is not what this machine, the driver's, has.
    """
    for what, name, remedy in _INSTALLED:
        theirs, own = getattr(message, name), getattr(ours, name)
        if theirs != own:
            raise InputError(
                f"{message.host} has {what} {theirs or 'unknown'}, the driver's machine "
                f"{own or 'unknown'}",
                remedy=remedy,
            )


def shown(text: str) -> str:
    """The beginning of a text from a stranger, on one line of ASCII."""
    return ascii(text[:_SHOWN])[1:-1] + ("..." if len(text) > _SHOWN else "")


def _refusal(message: Join, name: str, wanted: str, remedy: str) -> InputError:
    value = getattr(message, name)
    text = f"'{shown(value)}'" if isinstance(value, str) else f"{value}"
    return InputError(
        f"the node sent {name}={text}, which is not {wanted}",
        remedy=remedy,
    )
