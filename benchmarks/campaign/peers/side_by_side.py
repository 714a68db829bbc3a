"""Gives the same dumps to Headway and to other tools, and counts whom each of them names."""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from headway.health.client import diagnose_folder

from benchmarks.campaign.peers.dumps import Case, played_cases, recorded_cases

Answer = Literal["exact", "victims too", "not all", "others", "nothing", "error"]
"""``exact``: the culprits and nobody else. ``victims too``: all of them and others. ``not all``:
some of them, perhaps with others. ``others``: only ranks at which nothing is wrong."""
LIMIT_S = 600.0
Tool = Callable[[Case], Collection[int]]
"""The ranks that it names; raises RuntimeError if it ends with an error."""


def add_options(made: argparse.ArgumentParser) -> None:
    add = made.add_argument
    add("--dumps", type=int, default=100, help="played hangs that are given to peers")
    add("--recorded", type=Path, metavar="FOLDER", help="and recorded ones")
    add(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another tool: a command that is given a folder and the beginning of its files' "
        'names, and prints {"named": [RANK, ...]}',
    )


def answer(named: Collection[int], culprits: Collection[int]) -> Answer:
    """How the named ranks compare with the truth."""
    said, truth = set(named), set(culprits)
    if not said:
        return "nothing"
    if said == truth:
        return "exact"
    if said > truth:
        return "victims too"
    return "not all" if said & truth else "others"


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Ask every tool about every folder; only a wrong answer of Headway is a failure."""
    tools = _tools(options)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hw-peers-") as made:
        cases = list(played_cases(Path(made), options.dumps, options.seed, options.live_ranks))
        cases += recorded_cases(options.recorded) if options.recorded else []
        for case in cases:
            said = {name: _ask(tool, case) for name, tool in tools.items()}
            rows.append(
                {"case": case.name, "kind": case.kind, "source": case.source,
                 "culprits": sorted(case.culprits), **said}
            )  # fmt: skip
    found = counts(rows, list(tools))
    for (source, name), row in found.items():
        print(f"peers: {source:9} {name:24} " + ", ".join(f"{n} {text}" for text, n in row.items()))
    failures = [
        f"peers: {row['case']}, {row['kind']} of {row['culprits']}: {row['headway']}"
        for row in rows
        if row["headway"]["answer"] != "exact"
    ]
    shown = {f"{source} {name}": row for (source, name), row in found.items()}
    return {"counts": shown, "rows": rows}, failures


def counts(
    rows: Sequence[Mapping[str, Any]], tools: Sequence[str]
) -> dict[tuple[str, str], dict[str, int]]:
    """(source, tool) -> answer -> how often."""
    sources = sorted({row["source"] for row in rows})
    return {
        (source, name): dict(
            Counter(row[name]["answer"] for row in rows if row["source"] == source).most_common()
        )
        for source in sources
        for name in tools
    }


def _ask(tool: Tool, case: Case) -> dict[str, Any]:
    try:
        named = tool(case)
    except RuntimeError as error:
        return {"answer": "error", "error": str(error)[:300]}
    return {"answer": answer(named, case.culprits), "named": sorted(named)}


def _tools(options: argparse.Namespace) -> dict[str, Tool]:
    tools: dict[str, Tool] = {"headway": _headway, "torchfrtrace": _torchfrtrace}
    for word in options.peer:
        name, _, command = word.partition("=")
        tools[name] = functools.partial(_command, shlex.split(command))
    return tools


def _headway(case: Case) -> Collection[int]:
    found = diagnose_folder(case.folder).found
    return {one.rank for one in found[0].culprits if one.rank >= 0} if found else ()


def _torchfrtrace(case: Case) -> Collection[int]:
    words = [sys.executable, "-m", "benchmarks.campaign.peers.torchfrtrace"]
    return _command(words, case)


def _command(command: Sequence[str], case: Case) -> Collection[int]:
    """A tool in a process of its own, whose last line is JSON."""
    words = [*command, str(case.folder), case.prefix]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1])
    found = json.loads(lines[-1])
    if "error" in found:
        raise RuntimeError(found["error"])
    return [int(rank) for rank in found["named"]]
