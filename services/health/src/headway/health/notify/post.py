"""One POST of a JSON text, with time limits; its errors never contain the address."""

from __future__ import annotations

import base64
from typing import Final
from urllib.parse import unquote

CONNECT_S: Final = 5.0
_PASSING: Final = frozenset({408, 425, 429})
"""Answers of the kind "not now"; like those from 500 on, they may be different the next time."""
_REASONS: Final = {
    "NameResolutionError": "its name cannot be resolved",
    "NewConnectionError": "it accepts no connection",
    "ConnectTimeoutError": "it accepted no connection in time",
    "ReadTimeoutError": "it did not answer in time",
    "SSLError": "TLS failed; check its certificate",
    "ProtocolError": "the connection was lost",
}


class NotDelivered(Exception):
    """The server cannot be reached or cannot take it now; another try may succeed."""


class Refused(Exception):
    """The server does not want it; another try would be answered alike."""


def post(url: str, body: bytes, key: str, limit_s: float) -> None:
    """Send ``body`` and wait for the answer. A redirect is not followed.

    Args:
        key: of this text: the same one is sent again with the same key. limit_s: for the answer.

    Raises:
        NotDelivered, Refused: with a reason that is safe to print.
    """
    import urllib3  # takes a tenth of a second, on the thread that sends

    parts = urllib3.util.parse_url(url)
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    if parts.auth:
        token = base64.b64encode(unquote(parts.auth).encode()).decode()
        headers["Authorization"] = f"Basic {token}"
    where = parts._replace(auth=None, fragment=None).url
    limits = urllib3.Timeout(connect=CONNECT_S, read=limit_s)
    try:
        with urllib3.PoolManager(num_pools=1, timeout=limits, retries=False) as pool:
            answer = pool.request("POST", where, body=body, headers=headers, preload_content=False)
            answer.close()
    except (urllib3.exceptions.HTTPError, OSError) as error:
        name = type(error).__name__
        raise NotDelivered(_REASONS.get(name, f"{name}")) from None
    except Exception as error:  # another try would fail alike, and hold up all that wait
        raise Refused(f"it cannot be sent ({type(error).__name__})") from None
    if 200 <= answer.status < 300:
        return
    if answer.status in _PASSING or answer.status >= 500:
        raise NotDelivered(f"it answers with {answer.status}")
    if 300 <= answer.status < 400:
        raise Refused(f"it redirects ({answer.status}); give the address that it redirects to")
    raise Refused(f"it answers with {answer.status}")
