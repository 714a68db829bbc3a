"""Stays with a live run and exports what is new; the process that ``launch.sinks`` asks for.

Nothing that goes wrong here reaches the run: a full disk, a locked journal or another exporter is
logged once and tried again, and a run that ends is not held up for longer than ``LAST_S``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.console.folder.records import TERMINAL_OUTCOMES, RunRecords
from headway.console.sinks.export import Export, Exported, exporting

POLL_S = 1.0
RETRY_S = (2.0, 30.0)  # first and longest pause after a failure
LAST_S = 3.0
"""How long an exporter that is asked to end waits for the last rows of a run that is ending."""
SETTLE_S = 1.0  # without a new row, within ``LAST_S``
GONE_S = 30.0
"""An exporter ends by itself once its run has not been live for this long."""
NICE = 10
FAILURES = (OSError, HeadwayError)

log = get_logger("sink")


def follow(
    run: RunRecords,
    export: Export,
    *,
    is_ended: Callable[[], bool],
    wait: Callable[[float], object],
    report: Callable[[Exported], object] = lambda _: None,
) -> None:
    """Export until ``is_ended``, or until the run is not live any more; then once more.

    Args:
        is_ended: whether the exporter was asked to end.
        wait: waits so many seconds, or until it was.
        report: gets what was written, whenever something was.
    """
    pause_s, not_live_s, written = RETRY_S[0], 0.0, -1
    while not is_ended():
        is_live = _is_live(run)
        began = time.monotonic()
        if (done := _attempt(export)) is None:
            wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_S[1])
        else:
            pause_s = RETRY_S[0]
            if _count(done) != written:
                written = _count(done)
                report(done)
            if not is_live and _is_over(run):
                return
            wait(POLL_S)
        not_live_s = 0.0 if is_live else not_live_s + time.monotonic() - began
        if not_live_s > GONE_S:
            return
    _finish(run, export)


def _finish(run: RunRecords, export: Export) -> None:
    """Take the last rows. Of a run that is over the last ones may come a moment later."""
    deadline = time.monotonic() + LAST_S
    settled_at, written = time.monotonic() + SETTLE_S, -1
    while True:
        is_over, done = _is_over(run), _attempt(export)
        now = time.monotonic()
        if done is not None and _count(done) != written:
            written, settled_at = _count(done), now + SETTLE_S
        if not is_over or now > min(deadline, settled_at):
            return
        time.sleep(0.1)


def _count(done: Exported) -> int:
    return done.steps + done.evaluations + done.recoveries


def _attempt(export: Export) -> Exported | None:
    try:
        return export.update()
    except FAILURES as error:
        log.warning("export failed, retrying", reason=str(error))
        return None


def _is_live(run: RunRecords) -> bool:
    with contextlib.suppress(*FAILURES):
        return run.live
    return False  # its folder is gone


def _is_over(run: RunRecords) -> bool:
    with contextlib.suppress(*FAILURES):
        return run.outcome in TERMINAL_OUTCOMES
    return not run.path.exists()


def serve(path: Path, name: str) -> int:
    """Run the exporter for the run in ``path``; returns the exit code.

    Another exporter of the same folder is waited for: it may be one that is just ending.
    """
    with contextlib.suppress(OSError):
        os.nice(NICE)
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    run = RunRecords(path)
    pause_s = RETRY_S[0]
    while not end.is_set():
        try:
            with exporting(run, name) as export:
                log.info("exporting", sink=name, out=str(run.folder.sinks / name))
                follow(run, export, is_ended=end.is_set, wait=end.wait)
            return 0
        except HeadwayError as error:
            log.warning("cannot export now", reason=str(error))
            if not _is_live(run):
                return 1
            end.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_S[1])
    return 0
