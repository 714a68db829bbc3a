"""What a disturbed run is left with: ``look`` at it, and ``judge`` whether anything is degraded."""

from __future__ import annotations

import collections
import contextlib
import json
import sqlite3
import time
from typing import Any

from headway.common.errors import HeadwayError
from headway.console.run import Run
from headway.controller.faults import cgroups
from headway.testkit.journal import query

from benchmarks.drill.look import NODE_SERVICES, WELL, members, missing_steps

LIMIT_S = 60.0
"""Standbys are forked and services started again one after the other."""
FIRST_STARTS = 1
STARTS_PER_FAULT = 1
SPARE_STARTS = 4
"""A service may be started once, once for each fault that may end it, and so often besides."""
SAME_CRASHES = 3
"""So many failures counted for one step: the brake is about to end a healthy run."""


def look(run: Run) -> dict[str, Any]:
    """What there is of the run now, as plain data."""
    nodes: dict[int, str] = {}
    used: collections.Counter[int] = collections.Counter()
    with contextlib.suppress(HeadwayError):
        status = run.status(timeout_s=2.0)
        nodes = dict(status.nodes)
        used.update(row.node for row in status.ranks)
    rows = members(run)
    places = collections.Counter(f"{role} {node}" for _, role, node in rows)
    return {
        "nodes": {str(node): state for node, state in nodes.items()},
        "ranks": {str(node): used[node] for node in nodes},
        "places": dict(places),
        "leaders": {
            role: sum(1 for _, name, _ in rows if name == role) for role in ("driver", "monitor")
        },
        "stopped": [f"{role} {node}" for process, role, node in rows if process.state() == "T"],
        "frozen": [group.name for group in cgroups.groups()],
        "journal": why_not_writable(run),
        "missing_steps": missing_steps(run),
        "failures": [
            row[0] for row in query(run, "SELECT fields FROM events WHERE name = 'worker_failed'")
        ],
        "crashes": crashes(run),
        "starts": starts(run),
    }


def judge(seen: dict[str, Any], config: dict[str, int], num_faults: int) -> list[str]:
    """What is degraded; empty when nothing is.

    Args:
        seen: what ``look`` gave.
        config: ``nodes`` (spares included) and ``standbys`` as configured.
        num_faults: how many were struck.
    """
    bad = {node: state for node, state in seen["nodes"].items() if state not in WELL}
    wrong = [f"nodes {bad} are not active or spare"] if bad else []
    if len(seen["nodes"]) != config["nodes"]:
        wrong.append(f"{len(seen['nodes'])} of {config['nodes']} nodes are known")
    for node, ranks in seen["ranks"].items():
        forked = 1 + ranks + config["standbys"]  # and the zygote itself
        wanted = dict.fromkeys(("init", "executor", *NODE_SERVICES), 1) | {"zygote": forked}
        there = {name: seen["places"].get(f"{name} {node}", 0) for name in wanted}
        wrong += [
            f"node {node} has {there[name]} processes of {name}, not {number}"
            for name, number in wanted.items()
            if there[name] != number
        ]
    wrong += [f"{n} processes of {role}" for role, n in seen["leaders"].items() if n != 1]
    wrong += [f"{what}: {seen[what]}" for what in ("stopped", "frozen", "journal") if seen[what]]
    if gaps := seen["missing_steps"]:
        wrong.append(f"no metrics of {len(gaps)} steps: {gaps[:5]}")
    wrong += [f"a failure was taken for the code's: {row}"[:200] for row in seen["failures"]]
    wrong += [f"the brake counts {n} crashes: {what}"[:200] for what, n in seen["crashes"].items()
              if n >= SAME_CRASHES]  # fmt: skip
    most = FIRST_STARTS + STARTS_PER_FAULT * num_faults + SPARE_STARTS
    for what, number in seen["starts"].items():
        limit = most * (3 if what.startswith("worker") else 1)
        if number > limit:
            wrong.append(f"{what} was started {number} times, {limit} are enough")
    return wrong


def settle(run: Run, config: dict[str, int], num_faults: int) -> tuple[dict[str, Any], list[str]]:
    """Look repeatedly until nothing is degraded, ``LIMIT_S`` at most; returns the last look."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        seen = look(run)
        wrong = judge(seen, config, num_faults)
        if not wrong or time.monotonic() > deadline:
            return seen, wrong
        time.sleep(1.0)


def why_not_writable(run: Run) -> str:
    """Why the journal's write lock cannot be had; empty when nobody holds on to it."""
    try:
        with contextlib.closing(sqlite3.connect(run.folder.database, timeout=5.0)) as journal:
            journal.isolation_level = None
            journal.execute("BEGIN IMMEDIATE")
            journal.execute("ROLLBACK")
    except sqlite3.Error as error:
        return f"the journal cannot be written: {error}"
    return ""


def crashes(run: Run) -> dict[str, int]:
    """What the crash brake remembers: signature and step -> how often."""
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        rows = json.loads(run.fact("memory") or "{}").get("crashes", [])
        return {f"{signature or 'any cause'} at step {step}": int(n) for signature, step, n in rows}
    return {}


def starts(run: Run) -> dict[str, int]:
    """How often each service of each node was started,
    and how many workers each node has forked."""
    found: collections.Counter[str] = collections.Counter()
    for log in run.folder.logs.glob("n*.log"):
        head, _, service = log.stem.partition("-")
        if service:
            lines = log.read_text(errors="replace").splitlines()
            found[f"{service} of node {head[1:]}"] = sum(' is up"' in line for line in lines)
        else:
            found[f"workers of node {head[1:].partition('w')[0]}"] += 1
    return dict(found)
