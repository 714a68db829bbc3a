"""The API of Kubernetes over HTTPS: single requests, and one object that is read and replaced."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from headway.common.errors import HeadwayError

LIMIT_S = 2.0
MAX_BYTES = 1 << 20
CONFLICT = 409
JSON, MERGE_PATCH = "application/json", "application/merge-patch+json"
_MAX_WORDS = 300
_REMEDIES = {
    401: "the pod's ServiceAccount token was rejected: delete the pod, so that it gets a new one",
    403: "the run's Role or RoleBinding is missing: apply the manifests again",
    404: "apply the manifests of the run again",
}


class ApiError(HeadwayError, OSError):
    """A request failed; like an error of a file system, it may pass."""

    def __init__(self, message: str, *, status: int = 0, words: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        """The HTTP status; 0 without an answer that can be read."""
        self.words = words
        """What the server says about it, on one line."""
        self.retry_after_s = 0.0
        """When the server wants to be asked again; 0 where it does not say."""
        self.cause: object = None
        """What went wrong where nothing was answered."""


class Credentials(Protocol):
    """The identity behind requests; asked for each of them, because tokens change."""

    @property
    def remedies(self) -> Mapping[int, str]:
        """HTTP status -> what to do about it."""

    def context(self) -> ssl.SSLContext:
        """Which servers are trusted. Raises OSError or ValueError."""

    def headers(self) -> dict[str, str]:
        """What proves the identity. Raises OSError or ValueError."""


class PodAccount:
    """The ServiceAccount of a pod.

    Args:
        folder: with ``token`` and ``ca.crt``.
    """

    remedies: Mapping[int, str] = _REMEDIES

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def context(self) -> ssl.SSLContext:
        """See ``Credentials``."""
        return https_context(cafile=str(self._folder / "ca.crt"))

    def headers(self) -> dict[str, str]:
        """See ``Credentials``."""
        return {"Authorization": f"Bearer {(self._folder / 'token').read_text('ascii').strip()}"}


def https_context(*, cafile: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    """A context that trusts this authority, or without one those of the system.

    Raises:
        OSError: the file cannot be read, or the certificate is not one.
    """
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    # Python 3.13 demands extensions that the CAs of many clusters do not have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class ApiClient:
    """Sends requests to one API server, without proxies and redirects.

    Every call may block for its limit, and longer only while names are resolved or the answer
    makes progress.

    Args:
        server: ``https://HOST[:PORT]``.
        credentials: who asks.
        limit_s: of one request; None: ``LIMIT_S``.
        max_bytes: the longest answer that is read; None: ``MAX_BYTES``.
    """

    def __init__(
        self,
        server: str,
        credentials: Credentials,
        *,
        limit_s: float | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self.server, self._credentials = server.rstrip("/"), credentials
        self._limit_s, self._max_bytes = limit_s, max_bytes

    def json(
        self, method: str, path: str, body: object = None, *, media: str = JSON
    ) -> dict[str, Any]:
        """Send a request, and return the object that is answered.

        Args:
            method: of HTTP.
            path: from the first ``/`` on, with its query.
            body: sent as JSON; None: nothing.
            media: the type of the body.

        Raises:
            ApiError: it failed.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            found = json.loads(self._send(method, path, data, media))
        except (ValueError, RecursionError) as error:
            raise self._unusable(error) from None
        if not isinstance(found, dict):
            raise self.error("answers with something that is not the object")
        return found

    def text(self, path: str) -> str:
        """What a GET returns, such as the log of a pod. Raises ApiError."""
        return self._send("GET", path, None, JSON).decode(errors="replace")

    def _send(self, method: str, path: str, body: bytes | None, media: str) -> bytes:
        limit_s = LIMIT_S if self._limit_s is None else self._limit_s
        until, most = time.monotonic() + limit_s, self._max_bytes or MAX_BYTES
        try:
            headers = {"Accept": "*/*", "Content-Type": media, **self._credentials.headers()}
            request = urllib.request.Request(self.server + path, body, headers, method=method)
            with self._opener().open(request, timeout=limit_s) as answer:
                return _read(answer, until, most)
        except urllib.error.HTTPError as error:
            with error:
                words = _words(error, until)
            said = f": {words}" if words else ""
            failed = self.error(f"answers with {error.code}{said}", error.code, words)
            failed.retry_after_s = _seconds(error.headers.get("Retry-After"))
            raise failed from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unusable(error) from None

    def _opener(self) -> urllib.request.OpenerDirector:
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=self._credentials.context()),
            _NoRedirects(),
        )

    def _unusable(self, error: Exception) -> ApiError:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        failed = self.error(f"cannot be used: {_one_line(reason)}")
        failed.cause = reason
        return failed

    def error(self, what: str, status: int = 0, words: str = "") -> ApiError:
        """The error that says what the server does."""
        message = f"the API server of Kubernetes, {self.server}, {what}"
        remedy = self._credentials.remedies.get(status, "")
        return ApiError(message, status=status, words=words, remedy=remedy)


class ApiObject:
    """An object of the API of Kubernetes that exists already.

    Args:
        client: of its server.
        path: of the object, from the first ``/`` on.
    """

    def __init__(self, client: ApiClient, path: str) -> None:
        self._client, self._path = client, path

    def get(self) -> dict[str, Any]:
        """The object now. Raises ApiError."""
        return self._checked(self._client.json("GET", self._path))

    def put(self, new: dict[str, Any]) -> dict[str, Any] | None:
        """Replace the object and return it as it is kept.

        Returns None if it was changed since ``new`` was read. Raises ApiError.
        """
        try:
            return self._checked(self._client.json("PUT", self._path, new))
        except ApiError as error:
            if error.status == CONFLICT:
                return None
            raise

    def _checked(self, found: dict[str, Any]) -> dict[str, Any]:
        metadata = found.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("resourceVersion"), str):
            raise self._client.error("answers with something that is not the object")
        return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A token is for its own server only."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the redirect becomes an error."""


def _read(answer: IO[bytes], until: float, most: int) -> bytes:
    data = b""
    while chunk := answer.read1(1 << 16):  # type: ignore[attr-defined]
        data += chunk
        if len(data) > most:
            raise ValueError(f"its answer has more than {most} bytes")
        if time.monotonic() > until:
            raise TimeoutError("timed out")
    return data


def _words(error: urllib.error.HTTPError, until: float) -> str:
    """The message of the Status object that comes with an error; empty without one."""
    try:
        found = json.loads(_read(error, until, MAX_BYTES))
        return _one_line(found["message"])
    except (OSError, http.client.HTTPException, ValueError, TypeError, LookupError, RecursionError):
        return ""


def _seconds(text: str | None) -> float:
    """A Retry-After; 0 without one, or for a date, which API servers do not send."""
    return float(text) if text and text.isascii() and text.isdecimal() else 0.0


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:_MAX_WORDS]
