"""Finds services of a node whose process works while nothing listens at their socket."""

from __future__ import annotations

from collections.abc import Callable

from headway.common.wire.endpoint import has_listener
from headway.controller.executor.services import NEEDED, Services


class Reach:
    """``look`` once a second; ``endpoint_of`` gives a service's endpoint."""

    def __init__(self, endpoint_of: Callable[[str], str]) -> None:
        self._endpoint_of = endpoint_of
        self._suspects: set[str] = set()

    def look(self, services: Services) -> str:
        """Sentences about services that two looks in a row found unreachable; empty without any.

        A service notices by itself that its socket's file is gone and makes a new one, so the first
        look proves nothing. One whose process does not serve is reported by ``Services.trouble``.
        """
        before, self._suspects = self._suspects, {n for n in NEEDED if self._is_silent(services, n)}
        return "; ".join(
            f"{name} does not answer: nothing listens at {self._endpoint_of(name)}"
            for name in NEEDED
            if name in before & self._suspects
        )

    def _is_silent(self, services: Services, name: str) -> bool:
        return services.is_serving(name) and not has_listener(self._endpoint_of(name))
