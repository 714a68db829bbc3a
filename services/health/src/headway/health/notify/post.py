"""One POST of a JSON text, with time limits; its errors never contain the address."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import threading
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from urllib3.util.url import Url

CONNECT_S: Final = 5.0
_PASSING: Final = frozenset({408, 425, 429})
"""Answers of the kind "not now"; like those from 500 on, they may be different the next time."""
_REASONS: Final = {
    "NameResolutionError": "its name cannot be resolved",
    "NewConnectionError": "it accepts no connection",
    "ConnectTimeoutError": "it accepted no connection in time",
    "SSLError": "TLS failed; check its certificate",
    "HTTPException": "its answer is not one of HTTP",
    "OSError": "the connection was lost",
}


class NotDelivered(Exception):
    """The server cannot be reached or cannot take it now; another try may succeed."""


class Refused(Exception):
    """The server does not want it; another try would be answered alike."""


def post(url: str, body: bytes, key: str, limit_s: float) -> None:
    """Send ``body`` and wait for the answer. A redirect is not followed.

    Args:
        key: of this text: the same one is sent again with the same key. limit_s: for the whole
        exchange once the server has accepted the connection, however slowly it proceeds.

    Raises:
        NotDelivered, Refused: with a reason that is safe to print.
    """
    import urllib3  # takes a tenth of a second, on the thread that sends

    parts = urllib3.util.parse_url(url)
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    if parts.auth:
        token = base64.b64encode(unquote(parts.auth).encode()).decode()
        headers["Authorization"] = f"Basic {token}"
    try:
        status = _exchange(parts, body, headers, limit_s)
    except TimeoutError:
        raise NotDelivered("it did not answer in time") from None
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
        names = (kind.__name__ for kind in type(error).__mro__)
        reason = next((_REASONS[name] for name in names if name in _REASONS), None)
        raise NotDelivered(reason or type(error).__name__) from None
    except Exception as error:  # another try would fail alike, and hold up all that wait
        raise Refused(f"it cannot be sent ({type(error).__name__})") from None
    if 200 <= status < 300:
        return
    if status in _PASSING or status >= 500:
        raise NotDelivered(f"it answers with {status}")
    if 300 <= status < 400:
        raise Refused(f"it redirects ({status}); give the address that it redirects to")
    raise Refused(f"it answers with {status}")


def _exchange(parts: Url, body: bytes, headers: dict[str, str], limit_s: float) -> int:
    """Send a request; returns the status of its answer.

    The connection is not one of a pool: a time limit of sockets begins again with each byte that
    arrives, so that a timer has to end what trickles in.

    Raises:
        TimeoutError: the answer was not complete in time. urllib3's errors, those of http.client
        and OSError.
    """
    from urllib3.connection import HTTPConnection, HTTPSConnection

    is_over = threading.Event()
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=CONNECT_S)
    try:
        connection.connect()
        connection.sock.settimeout(limit_s)
        timer = threading.Timer(limit_s, _end, (connection.sock, is_over))
        timer.start()
        try:
            connection.request("POST", parts.request_uri, body, headers)
            status = connection.getresponse().status
        except Exception:
            if not is_over.is_set():
                raise
        finally:
            timer.cancel()
        if is_over.is_set():  # http.client takes headers that break off for whole ones
            raise TimeoutError
        return status
    finally:
        connection.close()


def _end(connection: socket.socket, is_over: threading.Event) -> None:
    is_over.set()
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
