"""What other programs import: checks, verdicts and responses, addresses, flight windows."""

from __future__ import annotations

from pathlib import Path

from headway.common.wire.messages.health import Evidence, Verdict
from headway.health.announce import read_address
from headway.health.checks.base import CheckSettings
from headway.health.flight_windows import FlightWindows
from headway.health.journal import close_open, newest_revisions, read_verdicts
from headway.health.responses import OBSERVE, STOP_RUN, reason, response
from headway.health.runner import CheckResult, run_suite
from headway.health.sources.train_log import CURSOR_FILE, mark_read

__all__ = [
    "OBSERVE",
    "STOP_RUN",
    "CheckResult",
    "CheckSettings",
    "FlightWindows",
    "Verdict",
    "begin_life",
    "read_address",
    "reason",
    "response",
    "run_checks",
    "verdicts_of",
]


def run_checks(
    suite: str = "quick", settings: CheckSettings | None = None, deadline_s: float | None = None
) -> list[CheckResult]:
    """Run a suite on this node and wait for it; ``deadline_s`` bounds each check.

    Raises:
        InputError: there is no such suite.
    """
    return list(run_suite(suite, settings, deadline_s))


def verdicts_of(run_dir: Path, *, only_open: bool = False) -> list[Verdict]:
    """The newest verdict of each episode of a run, oldest episode first; empty if there is none."""
    newest = newest_revisions(read_verdicts(run_dir / "verdicts.jsonl"))
    return [verdict for verdict in newest if verdict.is_open or not only_open]


def begin_life(shm_dir: Path, logs: Path, log_pattern: str, control: Path | None = None) -> None:
    """Prepare a node where a run begins anew; to be called before its agent starts.

    Log lines that are there already belong to its earlier life, and are not searched.

    Args:
        control: folder of ``verdicts.jsonl``, on the node that leads the start: what is open in it
            is closed, since the processes that it is about have ended.

    Raises:
        InputError, OSError: a file cannot be written.
    """
    try:
        mark_read(logs, log_pattern, shm_dir / CURSOR_FILE)
    finally:
        if control is not None:
            why = Evidence(source="beat", name="ended", value="the run was started again")
            close_open(control / "verdicts.jsonl", why)
