"""Tokens with which a machine may join a run as one of its nodes.

``EXPIRES.NODE.MAC``: the MAC is HMAC-SHA-256 over run, node and time with the run's secret, which
the console and every node have, because each node may have to host the driver. A token is good for
one node number until it expires. The keys of evicted machines are revoked.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time

from headway.common.errors import HeadwayError

VALID_S = 3600.0
_FORM = re.compile(r"([0-9]{1,12})\.([0-9]{1,9})\.([0-9a-f]{64})")


class TokenError(HeadwayError):
    """The token does not admit the machine."""


def new_secret() -> str:
    """64 hex digits."""
    return secrets.token_hex(32)


def mint(secret: str, run_id: str, node: int, *, valid_s: float = VALID_S) -> str:
    """A token for one node."""
    expires = int(time.time() + valid_s)
    return f"{expires}.{node}.{_mac(secret, run_id, node, expires)}"


def check(token: str, secret: str, run_id: str, node: int) -> None:
    """Check that a token lets a machine join the run as this node.

    Raises:
        TokenError: it is not one of this run, is for another node, or has expired.
    """
    parts = _FORM.fullmatch(token)
    if parts is None:
        raise TokenError("the token is malformed", remedy="get a new one: `headway node ticket`")
    expires, own = int(parts[1]), int(parts[2])
    if not hmac.compare_digest(parts[3], _mac(secret, run_id, own, expires)):
        raise TokenError(
            f"the token does not belong to run {run_id}",
            remedy="get a new one: `headway node ticket`",
        )
    if own != node:
        raise TokenError(
            f"the token is for node {own}, not node {node}", remedy="use the token of this node"
        )
    late_s = time.time() - expires
    if late_s > 0:
        raise TokenError(
            f"the token expired {late_s:.0f} s ago by the clock of the driver's machine",
            remedy="get a new one (`headway node ticket`), and check the clocks of the machines",
        )


def _mac(secret: str, run_id: str, node: int, expires: int) -> str:
    text = f"headway join {run_id} {node} {expires}".encode()
    return hmac.new(bytes.fromhex(secret), text, hashlib.sha256).hexdigest()
