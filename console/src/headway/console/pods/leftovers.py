"""Decides what becomes of objects that an earlier run of the same name has left. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.common.errors import CorruptError
from headway.console.pods import words
from headway.console.pods.kinds import JOB, SECRET
from headway.console.pods.objects import ENDING, Found
from headway.launch.engines.kubernetes.pod import BUNDLE, CONSOLE_KEY
from headway.launch.join.bundle import Bundle


@dataclass(frozen=True)
class Earlier:
    """A run that was begun and is not over: its Secret is there, and its Job may be."""

    run_id: str
    bundle: Bundle
    console_key: str = field(repr=False)
    has_job: bool


@dataclass(frozen=True)
class Leftovers:
    """What was found under a run's name."""

    earlier: Earlier | None
    """The run that can be completed or followed; at most one, since names are unique."""
    over: tuple[str, ...]
    """Ids of runs of which only remains are left: they ended, or their deletion was begun."""


def judge(found: Iterable[Found]) -> Leftovers:
    """Tell runs that can be continued from remains.

    Raises:
        CorruptError: a Secret does not describe a run.
    """
    by_run: dict[str, list[Found]] = {}
    for one in found:
        by_run.setdefault(one.run_id, []).append(one)
    earlier, over = None, []
    for run_id, objects in by_run.items():
        if (begun := _begun(run_id, objects)) is not None:
            earlier = begun
        else:
            over.append(run_id)
    return Leftovers(earlier, tuple(over))


def _begun(run_id: str, objects: list[Found]) -> Earlier | None:
    secrets = [one.data for one in objects if one.kind == SECRET]
    jobs = [one.data for one in objects if one.kind == JOB]
    if not secrets or ENDING in (secrets[0]["metadata"].get("annotations") or {}):
        return None
    if jobs and words.of_job(jobs[0]) != "running":
        return None
    files = _files(secrets[0])
    bundle = Bundle.from_json(files[BUNDLE], source=f"the Secret of run {run_id}")
    return Earlier(run_id, bundle, files[CONSOLE_KEY], bool(jobs))


def _files(secret: Mapping[str, Any]) -> dict[str, str]:
    try:
        data = secret["data"]
        return {name: base64.b64decode(data[name]).decode() for name in (BUNDLE, CONSOLE_KEY)}
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(
            f"Secret {secret['metadata']['name']} is not that of a run: {error}",
            remedy="delete it, or give the run another --name",
        ) from error
