"""A verdict as the driver takes it: what the journal keeps of it, and what is to be decided on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.common.node.run_dir import RunDir
from headway.common.wire.messages.health import Verdict
from headway.controller.decisions.events import VerdictReceived
from headway.health.client import OBSERVE, STOP_RUN, brief_of, response

_KEPT = ("id", "kind", "node", "rank", "pid", "service", "remedy", "is_open")


def journal_fields(verdict: Verdict) -> dict[str, Any]:
    """Return the fields of the journal's event for a verdict.

    They say who is concerned, the log line that it comes from (its text, file and program) or the
    sentence for people, if there is one, and the diagnosis.
    """
    rows = _rows(verdict)
    fields: dict[str, Any] = {name: getattr(verdict, name) for name in _KEPT}
    if "line" in rows:
        fields |= {"line": rows["line"], "file": _file(rows), "program": rows.get("program", "")}
    if "finding" in rows:
        fields["finding"] = rows["finding"]
    if why := _why_it_hangs(verdict):
        fields["why"] = why
    return fields | {"cause": verdict.cause, "diagnosis": brief_of(verdict)}


def judged(
    verdict: Verdict, run: RunDir, trouble: str, *, has_begun: bool = False
) -> VerdictReceived | None:
    """The event for the decisions; None while an action still needs to be confirmed.

    A line that says that a module is missing ends a run that has not begun only once the executor
    has seen its process end: ``trouble`` is what that node cannot do now, by its newest beat. In a
    run that has begun it is observed, since the rank that fails by it reports it.
    """
    found = response(verdict)
    if found == STOP_RUN and has_begun:
        found = OBSERVE
    elif found == STOP_RUN and not _has_ended(_rows(verdict).get("program", ""), trouble):
        return None
    return VerdictReceived(
        verdict.id,
        verdict.revision,
        verdict.kind,
        found,
        verdict.node,
        pid=verdict.pid,
        rank=verdict.rank,
        generation=verdict.generation,
        service=verdict.service,
        silence_s=verdict.silence_s,
        detail=f"{verdict.remedy}; see {_place(verdict, run)}",
        why=_why_it_hangs(verdict),
    )


def _why_it_hangs(verdict: Verdict) -> str:
    """What a hung rank has not begun, and where it is in its program; empty of other verdicts."""
    if verdict.kind != "silence":
        return ""
    rows = _rows(verdict)
    return "; ".join(rows[name] for name in ("why", "where") if rows.get(name))


def _has_ended(program: str, trouble: str) -> bool:
    """Whether an executor's sentences say that the program that printed a line does not run."""
    return bool(program) and (f"{program} does not run" in trouble or "forks fail" in trouble)


def _place(verdict: Verdict, run: RunDir) -> Path:
    """The file that has more about it."""
    rows = _rows(verdict)
    if "line" in rows:
        return Path(_file(rows))
    if verdict.service:
        return run.logs / f"n{verdict.node}-{verdict.service}.log"
    return run.control / "verdicts.jsonl"


def _rows(verdict: Verdict) -> dict[str, str]:
    return {row.name: row.value for row in verdict.evidence}


def _file(rows: dict[str, str]) -> str:
    """The file named in ``file:inode:offset``."""
    return rows.get("at", "").rsplit(":", 2)[0]
