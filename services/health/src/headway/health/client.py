"""What other programs import: checks, verdicts and responses, addresses, saving flight records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.common.wire.messages.health import Evidence, Verdict
from headway.health.announce import read_address
from headway.health.checks.base import CheckSettings
from headway.health.journal import close_open, newest_revisions, read_verdicts
from headway.health.responses import OBSERVE, STOP_RUN, reason, response
from headway.health.rule_files import with_own
from headway.health.runner import CheckResult, run_suite
from headway.health.sources import kernel_journal, kernel_log
from headway.health.sources.train_log import CURSOR_FILE, mark_read
from headway.health.store.child import Saving

__all__ = [
    "OBSERVE",
    "STOP_RUN",
    "CheckResult",
    "CheckSettings",
    "Saving",
    "Verdict",
    "begin_life",
    "check_rules",
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


def check_rules(files: Sequence[str]) -> None:
    """Check a run's own rules before it starts.

    Raises:
        ConfigError: a file cannot be read, or a rule in it is not valid.
    """
    with_own([Path(name) for name in files])


def begin_life(shm_dir: Path, logs: Path, log_pattern: str, control: Path | None = None) -> None:
    """Prepare a node where a run begins anew; to be called before its agent starts.

    Lines that are already in the logs, the kernel's included, belong to its earlier life, and are
    not searched.

    Args:
        control: folder of ``verdicts.jsonl``, on the node that leads the start: what is open in it
            is closed, since the processes that it is about have ended.

    Raises:
        InputError, OSError: a file cannot be written.
    """
    for name in (kernel_log.CURSOR_FILE, kernel_journal.CURSOR_FILE):
        (shm_dir / name).unlink(missing_ok=True)  # without one only news count
    try:
        mark_read(logs, log_pattern, shm_dir / CURSOR_FILE)
    finally:
        if control is not None:
            why = Evidence(source="beat", name="ended", value="the run was started again")
            close_open(control / "verdicts.jsonl", why)
