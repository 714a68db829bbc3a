"""How dense are the tests of control and wire?

``python -m benchmarks.mutants --count 200 --seed 0``.

cosmic-ray makes the mutants: comparisons turned round, numbers and constants changed, conditions
negated, loops that run no time. A seeded sample of them is tried, each in a copy of the source that
comes first on the path, in a fork of a process that has loaded the heavy libraries already. The
tests of the mutant's own file run first; a mutant that passes them all must pass the other tests of
its folder too before it counts as a survivor: a change that no test sees.
``benchmarks/survivors.toml`` gives the reason for each that may survive. The tests must not be
edited while it runs: what a half-written test fails would count as killed.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mutant_bench import FOLDERS, ROOT, Bench, rank, tests_of
from benchmarks.report import parser
from benchmarks.report import write as write_result

REASONS = Path(__file__).with_name("survivors.toml")
NOT_USED = (
    "ExceptionReplacer", "VariableInserter", "VariableReplacer", "RemoveDecorator", "ReplaceBinary",
    "_IsNot", "_Is", "_NotIn", "_In", "Invert", "UAdd",
)  # fmt: skip
"""Operators that mostly break types or names, which mypy sees and any import shows."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file; ``line`` is the changed line as it was and as it is."""

    file: str
    operator: str
    occurrence: int
    line: str
    code: str

    @property
    def name(self) -> str:
        """Names the mutant for as long as its line stands."""
        return f"{Path(self.file).name} {self.operator.rpartition('/')[2]}: {self.line}"


def sample(count: int, seed: int) -> list[Mutant]:
    """``count`` mutants of as many lines, drawn evenly from all places of both folders."""
    from cosmic_ray import plugins

    kinds = [name for name in sorted(plugins.operator_names()) if not _is_unused(name)]
    places: list[tuple[str, str, int]] = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name != "__init__.py" and "messages" not in path.parts:
                places += _places(path, kinds)
    random.Random(seed).shuffle(places)
    found: dict[tuple[str, str], Mutant] = {}  # one a line: a comparison alone has five
    for file, kind, occurrence in places:
        if len(found) == count:
            break
        mutant = _mutant(file, kind, occurrence)
        if mutant is not None:
            found.setdefault((file, mutant.line.partition(" -> ")[0]), mutant)
    return list(found.values())


def _is_unused(name: str) -> bool:
    return any(part in name for part in NOT_USED)


def _places(path: Path, kinds: list[str]) -> list[tuple[str, str, int]]:
    from cosmic_ray.ast import Visitor, get_ast
    from cosmic_ray.plugins import get_operator

    tree, file = get_ast(path.read_text()), str(path.relative_to(ROOT))
    found: list[tuple[str, str, int]] = []
    for kind in kinds:
        operator, number = get_operator(kind)(), 0

        class Counter(Visitor):  # type: ignore[misc]
            def visit(self, node: Any, operator: Any = operator) -> Any:
                nonlocal number
                number += len(list(operator.mutation_positions(node)))
                return node

        Counter().walk(tree)
        found += [(file, kind, occurrence) for occurrence in range(number)]
    return found


def _mutant(file: str, kind: str, occurrence: int) -> Mutant | None:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    old = (ROOT / file).read_text()
    new = mutate_code(old, get_operator(kind)(), occurrence)
    if new is None:
        return None
    for before, after in zip(old.splitlines(), new.splitlines(), strict=False):
        if before != after:
            is_annotation = before.lstrip().startswith(("def ", '"""')) or (
                ": " in before and "|" in before
            )
            line = f"{before.strip()} -> {after.strip()}"
            return None if is_annotation else Mutant(file, kind, occurrence, line, new)
    return None


def reasons() -> dict[str, str]:
    """Mutant -> why it may survive."""
    rows = tomllib.loads(REASONS.read_text())["survivor"]
    return {row["mutant"]: row["reason"] for row in rows}


def main(argv: Sequence[str] | None = None) -> int:
    """Try them; returns 0 when every mutant was killed or has a reason to survive."""
    given = parser(__doc__)
    given.add_argument("--count", type=int, default=200)
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--jobs", type=int, default=2)
    given.add_argument("--only", default="", help="only mutants whose name contains this")
    given.add_argument("--minutes", type=float, default=1e6, help="begin no mutant after that")
    options = given.parse_args(argv)
    ends_at = time.monotonic() + 60 * options.minutes
    mutants = sorted(sample(options.count, options.seed), key=lambda one: rank(one.file))
    rows: dict[str, dict[str, Any]] = {}
    if options.out and options.out.exists():
        old = json.loads(options.out.read_text())["mutants"]
        known = reasons()
        for row in old:
            if not row["killed_by"]:
                row["reason"] = known.get(row["mutant"], "")
        rows = {row["mutant"]: row for row in old if row["killed_by"] or row["reason"]}
        rows = {one.name: rows[one.name] for one in mutants if one.name in rows}
    benches: queue.SimpleQueue[Bench] = queue.SimpleQueue()
    checked: set[int] = set()
    checking, writing = threading.Lock(), threading.Lock()

    def attempt(mutant: Mutant, part: int) -> None:
        if time.monotonic() > ends_at:
            return
        bench = benches.get()
        try:
            with checking:
                if rank(mutant.file) not in checked:
                    check_tests(bench, mutant.file)
                    checked.add(rank(mutant.file))
            killer = bench.killed_by(mutant.file, mutant.code, tests_of(mutant.file)[part])
        finally:
            benches.put(bench)
        row = {"mutant": mutant.name, "file": mutant.file, "killed_by": killer}
        if killer is None:
            row |= {"reason": reasons().get(mutant.name, ""), "tests": ("own", "folder")[part]}
        word = "killed  " if killer else ("reason  " if row["reason"] else "SURVIVED")
        with writing:
            print(f"{word} {mutant.name}", flush=True)
            rows[mutant.name] = row
            if options.out:
                write(options, list(rows.values()))

    with tempfile.TemporaryDirectory(prefix="headway-mutant-") as folder:
        for number in range(options.jobs):
            benches.put(Bench(Path(folder) / str(number)))
        for part in (0, 1):
            tried = [one for one in mutants if options.only in one.name]
            tried = [one for one in tried if (one.name in rows) == bool(part)]
            tried = [one for one in tried if not part or is_open(rows[one.name])]
            with ThreadPoolExecutor(options.jobs) as pool:
                list(pool.map(lambda one, part=part: attempt(one, part), tried))
    survived = [row for row in rows.values() if row["killed_by"] is None]
    open_ones = [row for row in survived if is_open(row)]
    untried = [one for one in mutants if options.only in one.name and one.name not in rows]
    print(f"{len(rows)} mutants, {len(survived)} survived, {len(open_ones)} without a reason")
    print(f"{len(untried)} were not tried")
    return 1 if open_ones or untried else 0


def check_tests(bench: Bench, file: str) -> None:
    """Its own tests pass without any mutant: what fails anyhow would seem to kill all."""
    if failed := bench.killed_by(file, (ROOT / file).read_text(), tests_of(file)[0]):
        raise SystemExit(f"without any mutant: {failed}")


def is_open(row: dict[str, Any]) -> bool:
    """Whether the mutant survived and has no reason to."""
    return row["killed_by"] is None and not row["reason"]


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """The result so far."""
    survived = [row for row in rows if row["killed_by"] is None]
    counts = {
        "asked_for": options.count,
        "tried": len(rows),
        "survived": len(survived),
        "survived_the_own_tests_only": sum(row["tests"] == "own" for row in survived),
    }
    write_result(options.out, **counts, mutants=rows)


if __name__ == "__main__":
    sys.exit(main())
