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

OVER: tuple[words.JobState, ...] = ("complete", "failed")


@dataclass(frozen=True)
class Earlier:
    """A run whose Secret is there and whose deletion was not begun."""

    run_id: str
    bundle: Bundle
    console_key: str = field(repr=False)
    secret_uid: str
    job: words.JobState


@dataclass(frozen=True)
class Leftovers:
    """What was found under a run's name."""

    earlier: Earlier | None
    """The run that can be completed or followed, or whose Job has ended; at most one, since names
    are unique."""
    remains: tuple[str, ...]
    """Ids of runs of which no more can be known: their deletion was begun."""


def judge(found: Iterable[Found]) -> Leftovers:
    """Tell runs that can be continued from remains.

    Raises:
        CorruptError: a Secret does not describe a run.
    """
    by_run: dict[str, list[Found]] = {}
    for one in found:
        by_run.setdefault(one.run_id, []).append(one)
    earlier, remains = None, []
    for run_id, objects in by_run.items():
        if (begun := _begun(run_id, objects)) is not None:
            earlier = begun
        else:
            remains.append(run_id)
    return Leftovers(earlier, tuple(remains))


def _begun(run_id: str, objects: list[Found]) -> Earlier | None:
    secrets = [one.data for one in objects if one.kind == SECRET]
    jobs = [one.data for one in objects if one.kind == JOB]
    if not secrets or ENDING in (secrets[0]["metadata"].get("annotations") or {}):
        return None
    state = words.of_job(jobs[0] if jobs else None)
    try:
        files = _files(secrets[0])
    except CorruptError:
        if state in OVER:
            return None
        raise
    bundle = Bundle.from_json(files[BUNDLE], source=f"the Secret of run {run_id}")
    return Earlier(run_id, bundle, files[CONSOLE_KEY], secrets[0]["metadata"]["uid"], state)


def _files(secret: Mapping[str, Any]) -> dict[str, str]:
    try:
        data = secret["data"]
        return {name: base64.b64decode(data[name]).decode() for name in (BUNDLE, CONSOLE_KEY)}
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(
            f"Secret {secret['metadata']['name']} is not that of a run: {error}",
            remedy="delete it, or give the run another --name",
        ) from error
