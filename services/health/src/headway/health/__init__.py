"""Health of a training cluster: checks of a node, an agent per node, a monitor per run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.health.client import CheckResult, run_checks, verdicts_of
    from headway.health.config import HealthConfig
    from headway.health.responses import response

__all__ = ["CheckResult", "HealthConfig", "response", "run_checks", "verdicts_of"]

__getattr__, __dir__ = lazy(
    __name__,
    client="CheckResult run_checks verdicts_of",
    config="HealthConfig",
    responses="response",
)
