"""One object of the API of Kubernetes, read and replaced over HTTPS with the pod's own account."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

from headway.common.errors import HeadwayError

LIMIT_S = 2.0
MAX_BYTES = 1 << 20
CONFLICT = 409
_REMEDIES = {
    401: "the pod's ServiceAccount token was rejected: delete the pod, so that it gets a new one",
    403: "the run's Role or RoleBinding is missing: apply the manifests again",
    404: "apply the manifests of the run again",
}


class ApiError(HeadwayError, OSError):
    """A request failed; like an error of a file system, it may pass."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message, remedy=_REMEDIES.get(status, ""))
        self.status = status
        """The HTTP status; 0 without an answer that can be read."""


class ApiObject:
    """An object of the API of Kubernetes that exists already.

    Every call may block for ``LIMIT_S``, and longer only while names are resolved or the answer
    makes progress; token and CA are read anew, because they change in the life of a pod.

    Args:
        server: ``https://HOST[:PORT]``.
        path: of the object, from the first ``/`` on.
        account: folder with ``token`` and ``ca.crt``.
    """

    def __init__(self, server: str, path: str, account: Path) -> None:
        self._server, self._url, self._account = server, server.rstrip("/") + path, account

    def get(self) -> dict[str, Any]:
        """The object now. Raises ApiError."""
        return self._send("GET", None)

    def put(self, new: dict[str, Any]) -> dict[str, Any] | None:
        """Replace the object and return it as it is kept.

        Returns None if it was changed since ``new`` was read. Raises ApiError.
        """
        try:
            return self._send("PUT", json.dumps(new).encode())
        except ApiError as error:
            if error.status == CONFLICT:
                return None
            raise

    def _send(self, method: str, body: bytes | None) -> dict[str, Any]:
        until = time.monotonic() + LIMIT_S
        try:
            request = urllib.request.Request(self._url, body, self._headers(), method=method)
            with self._opener().open(request, timeout=LIMIT_S) as answer:
                found = json.loads(_read(answer, until))
        except urllib.error.HTTPError as error:
            error.close()
            raise self._error(f"answers with {error.code}", error.code) from None
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise self._error(f"cannot be used: {_one_line(reason)}") from None
        metadata = found.get("metadata") if isinstance(found, dict) else None
        if not isinstance(metadata, dict) or not isinstance(metadata.get("resourceVersion"), str):
            raise self._error("answers with something that is not the object")
        return dict(found)

    def _headers(self) -> dict[str, str]:
        token = (self._account / "token").read_text("ascii").strip()
        kind = {"Accept": "application/json", "Content-Type": "application/json"}
        return {"Authorization": f"Bearer {token}", **kind}

    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        # Python 3.13 demands extensions that the CAs of many clusters do not have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=context),
            _NoRedirects(),
        )

    def _error(self, what: str, status: int = 0) -> ApiError:
        return ApiError(f"the API server of Kubernetes, {self._server}, {what}", status=status)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A token is for its own server only."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the redirect becomes an error."""


def _read(answer: IO[bytes], until: float) -> bytes:
    data = b""
    while chunk := answer.read1(1 << 16):  # type: ignore[attr-defined]
        data += chunk
        if len(data) > MAX_BYTES:
            raise ValueError(f"its answer has more than {MAX_BYTES} bytes")
        if time.monotonic() > until:
            raise TimeoutError("timed out")
    return data


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]
