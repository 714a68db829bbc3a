"""What other programs import: checks, verdicts and responses, addresses, saving flight records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.common.log import get_logger
from headway.common.plan.grid import Grid
from headway.common.wire.messages.health import Evidence, Verdict
from headway.health.announce import read_address
from headway.health.checks.base import CheckSettings
from headway.health.diagnosis.diagnosis import Diagnosis
from headway.health.diagnosis.of_verdict import diagnosis_of
from headway.health.diagnosis.wait_for import Holdup
from headway.health.diagnosis.waiting import WaitGraph, wait_graph
from headway.health.diagnosis.words import lines_of, short_lines
from headway.health.journal import close_open, newest_revisions, read_verdicts, set_aside
from headway.health.responses import OBSERVE, STOP_RUN, reason, response
from headway.health.rule_files import with_own
from headway.health.runner import CheckResult, run_suite
from headway.health.sources import kernel_journal, kernel_log
from headway.health.sources.train_log import CURSOR_FILE, mark_read
from headway.health.store.child import Saving

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_log = get_logger("health")

__all__ = [
    "OBSERVE",
    "STOP_RUN",
    "CheckResult",
    "CheckSettings",
    "Diagnosed",
    "Diagnosis",
    "Holdup",
    "Saving",
    "Verdict",
    "WaitGraph",
    "begin_life",
    "brief_of",
    "brief_text",
    "check_rules",
    "diagnose_folder",
    "diagnose_run",
    "read_address",
    "reason",
    "response",
    "run_checks",
    "slow_ranks",
    "verdicts_of",
    "waiting_in",
]


BRIEF = (
    "kind", "cause", "summary", "where", "why", "do", "confidence", "alternatives", "done",
    "since", "since_error_s",
)  # fmt: skip
"""Fields of a diagnosis that are shown to people."""


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


@dataclass(frozen=True)
class Diagnosed:
    """What is wrong, and what that was judged by."""

    found: tuple[Diagnosis, ...]
    """The first cause in front; one of kind ``none`` if nothing is wrong."""
    lines: tuple[str, ...]
    """For people."""
    is_wrong: bool
    """Whether anything is wrong now: of a run, whether its monitor has an open verdict.
    Slow steps that only a diagnosis shows are no more than a hint."""
    read: dict[str, str]
    """File -> what it was read as."""
    unread: dict[str, str]
    """File -> why it was not read."""
    is_past: bool = False
    """Whether all that was found is over."""
    waiting: Callable[[], WaitGraph | None] = lambda: None
    """Makes the graph of who waits for whom; None if nothing shows where the ranks are."""


def diagnose_folder(folder: Path) -> Diagnosed:
    """Judge a folder with dumps, logs, stacks, counters and kernel logs of any job.

    Raises:
        InputError: there is no such folder, or it is empty.
    """
    # its readers are many, and no other command needs them
    from headway.health.folder.evidence import read_folder
    from headway.health.folder.judge import judge
    from headway.health.folder.scene import titles, whole_scene
    from headway.health.folder.words import reading_of

    def waiting() -> WaitGraph | None:
        scene, names = whole_scene(evidence), titles(evidence)
        return wait_graph(scene, lambda group: names.get(group, group)) if scene.positions else None

    evidence = read_folder(folder)
    found = judge(evidence)
    lines = (*lines_of(found), *reading_of(evidence))
    is_wrong = any(one.kind != "none" for one in found)
    read, unread = evidence.read, evidence.unread
    return Diagnosed(tuple(found), lines, is_wrong, read, unread, waiting=waiting)


def diagnose_run(
    control: Path, summaries: Path, grid: Grid | None = None, *, is_over: bool = False
) -> Diagnosed:
    """What is wrong with a run now, else the last fault.

    That is what its monitor holds against somebody, and what slows its newest steps.

    Args:
        control: folder of ``verdicts.jsonl``. summaries: where the monitor saves those of steps.
            grid: which ranks do the same work. is_over: the run has ended, and with it what slowed
            it.
    """
    from headway.health.slowness.of_run import is_known, slow_steps

    verdicts = verdicts_of(control)
    now = [one for one in verdicts if one.is_open]
    held = [diagnosis_of(one) for one in sorted(now, key=lambda one: -one.confidence)]
    slow = slow_steps(summaries, grid, now)  # what is over does not explain these steps
    found = [*held, *(one for one in slow.found if not is_known(one, held))]
    is_wrong = any(one.kind != "slow" or not is_over for one in held)
    is_past = not is_wrong and (is_over or all(one.until_step is not None for one in found))
    if not found and verdicts:
        found = [diagnosis_of(verdicts[-1])]
        lines = ("nothing is wrong now; the last fault:", *lines_of(found))
    elif not found:
        lines = ("nothing is wrong now",)
    elif is_past:
        when = "before the run ended" if is_over else "already over"
        lines = (f"nothing is wrong now; {when}:", *lines_of(found))
    else:
        lines = tuple(lines_of(found, time.time()))
    read = {"verdicts.jsonl": "verdicts", **slow.read}
    return Diagnosed(tuple(found), lines, is_wrong, read, slow.unread, is_past)


def slow_ranks(seconds: npt.NDArray[np.float64], grid: Grid) -> tuple[int, ...]:
    """Ranks that stay slower in one action than others of their stage, the slowest first.

    Args:
        seconds: by step and rank; NaN where nothing is recorded.
    """
    from headway.health.slowness.one_action import slow_ranks

    return slow_ranks(seconds, grid)


def brief_of(verdict: Verdict) -> dict[str, Any]:
    """A verdict as a diagnosis without its evidence, as plain values for JSON."""
    row = diagnosis_of(verdict).as_dict()
    return {name: row[name] for name in BRIEF}


def brief_text(row: Mapping[str, Any], now_s: float, done: str = "") -> str:
    """A brief as five lines: who, where, why, how sure, and what to do.

    ``done`` is what the driver has done about it since.
    """
    fields = {name: row[name] for name in BRIEF if name in row}
    lists = {name: tuple(fields.get(name, ())) for name in ("why", "alternatives")}
    found = Diagnosis(**{**fields, **lists, **({"done": done} if done else {})})
    return "\n".join(short_lines(found, now_s))


def waiting_in(folders: Iterable[Path]) -> WaitGraph | None:
    """The wait graph of a run's newest generation; None without a flight ring.

    A run that makes progress looks alike in the middle of a step.

    Args:
        folders: where the flight rings of the run's nodes are.
    """
    from headway.health.config import HealthConfig
    from headway.health.detectors.positions import scene_of
    from headway.health.detectors.rank_view import RankView
    from headway.health.sources.workers import WorkerSource

    config = HealthConfig()
    views = []
    for node, folder in enumerate(folders):
        source = WorkerSource(folder, config)
        views += [RankView(node, signals) for signals in source.read()]
        source.close()
    newest = max((view.signals.generation for view in views), default=-1)
    for view in views:
        if view.signals.state == "done":
            view.absence = "ended"
    shown = [view for view in views if view.signals.generation == newest]
    return wait_graph(scene_of(shown, config)) if shown else None


def check_rules(files: Sequence[str]) -> None:
    """Check a run's own rules before it starts.

    Raises:
        ConfigError: a file cannot be read, or a rule in it is not valid.
    """
    if files:  # the shipped rules alone need no check, and their many patterns time to compile
        with_own([Path(name) for name in files])


def begin_life(shm_dir: Path, logs: Path, log_pattern: str, control: Path | None = None) -> None:
    """Prepare a node where a run begins anew; to be called before its agent starts.

    Lines that are already in the logs, the kernel's included, belong to its earlier life, and are
    not searched.

    Args:
        control: folder of ``verdicts.jsonl``, on the node that leads the start: what is open in it
            is closed, since the processes that it is about have ended. One that another version
            wrote is renamed.

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
            if (older := set_aside(control / "verdicts.jsonl")) is not None:
                _log.warning("verdicts of another version were moved away", to=str(older))
            close_open(control / "verdicts.jsonl", why)
