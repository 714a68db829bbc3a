"""Requests that are sent again while the API server has trouble, or after a token was renewed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from headway.launch.lease.kubernetes_api import JSON, ApiClient, ApiError, Credentials

LIMIT_S = 10.0
"""Limit of one request: people wait for it, not a run."""
MAX_BYTES = 64 << 20
"""Longest answer, such as a list of pods or a log."""
LOOK_PATIENCE_S = 3.0
"""For how long a look at a run is tried again."""
PATIENCE_S = 30.0
"""For how long each request of a start or a deletion is tried again."""
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
MOST_ASKED_S = 10.0
"""Longest pause that is made because the server asks for it."""
UNAUTHORIZED, TOO_MANY = 401, 429


class PatientClient(ApiClient):
    """An ``ApiClient`` that repeats what failed with 429, 5xx or without an answer.

    A create that was carried out though its answer was lost is answered with 409 the next time.

    Args:
        server: see ``ApiClient``.
        credentials: see ``ApiClient``.
        renew: reads the credentials again after the server has rejected them; returns None where
            they are the same.
    """

    def __init__(
        self,
        server: str,
        credentials: Credentials,
        renew: Callable[[], Credentials | None] = lambda: None,
    ) -> None:
        super().__init__(server, credentials, limit_s=LIMIT_S, max_bytes=MAX_BYTES)
        self._renew, self._patience_s, self._has_answered = renew, LOOK_PATIENCE_S, False

    def be_patient(self) -> None:
        """Try each request for ``PATIENCE_S`` from now on, as starts and deletions do."""
        self._patience_s = PATIENCE_S

    def text(self, path: str) -> str:
        """See ``ApiClient``; not repeated, because a log depends on the machine of one pod."""
        return self._try("GET", path, None, JSON, 0.0).decode(errors="replace")

    def _send(self, method: str, path: str, body: bytes | None, media: str) -> bytes:
        return self._try(method, path, body, media, self._patience_s)

    def _try(
        self, method: str, path: str, body: bytes | None, media: str, patience_s: float
    ) -> bytes:
        until, pause_s, may_renew = time.monotonic() + patience_s, FIRST_PAUSE_S, True
        while True:
            try:
                found = super()._send(method, path, body, media)
            except ApiError as error:
                self._has_answered |= error.status > 0
                if error.status == UNAUTHORIZED and may_renew and self._has_renewed():
                    may_renew = False
                    continue
                asked_s = min(error.retry_after_s, MOST_ASKED_S)
                wait_s = max(pause_s * random.uniform(0.5, 1.0), asked_s)
                if not self._may_pass(error) or time.monotonic() + wait_s > until:
                    raise
            else:
                self._has_answered = True
                return found
            time.sleep(wait_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _has_renewed(self) -> bool:
        found = self._renew()
        if found is not None:
            self._credentials = found
        return found is not None

    def _may_pass(self, error: ApiError) -> bool:
        """Whether a repetition may help: an address that has never answered may be wrong."""
        if error.status:
            return error.status == TOO_MANY or error.status >= 500
        if isinstance(error.cause, ValueError):  # a certificate, or an answer that is too long
            return False
        return self._has_answered or isinstance(error.cause, TimeoutError | ConnectionResetError)
