"""How dense are the tests of control and wire? ``python -m benchmarks.mutants --count 200 --seed 0``.

cosmic-ray makes the mutants: comparisons turned round, numbers and constants changed, conditions
negated, loops that run no time. A seeded sample of them is tried, each in a copy of the source that
comes first on the path of the tests of its folder. A survivor is a change that no test of them sees;
``benchmarks/survivors.toml`` gives the reason for each that may survive.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mutations import ROOT, copy_of_source

CONTROL = "services/trainer/src/headway/trainer/control"
WIRE = "libs/common/src/headway/common/wire"
TESTS = {
    CONTROL: "services/trainer/tests/test_control*.py services/trainer/tests/test_guardian*.py "
    "services/trainer/tests/test_journal.py services/trainer/tests/test_driver*.py "
    "services/trainer/tests/test_node_run.py",
    WIRE: "libs/common/tests/wire",
}
REASONS = Path(__file__).with_name("survivors.toml")
LIMIT_S = 240.0
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
    for folder in TESTS:
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


def killed_by(mutant: Mutant) -> str | None:
    """The first failing test, or why the tests did not end well; None if the mutant survives."""
    folder = next(one for one in TESTS if mutant.file.startswith(one))
    tests = [
        str(path.relative_to(ROOT)) for word in TESTS[folder].split() for path in ROOT.glob(word)
    ]
    with tempfile.TemporaryDirectory(prefix="headway-mutant-") as name:
        sources = copy_of_source(Path(name))
        (Path(name) / mutant.file).write_text(mutant.code)
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, sources)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, "-m", "not slow", *sorted(tests)],
                cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "did not end"
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" - ")[0] if failed else f"pytest ended with {done.returncode}"


def reasons() -> dict[str, str]:
    """Mutant -> why it may survive."""
    if not REASONS.exists():
        return {}
    rows = tomllib.loads(REASONS.read_text()).get("survivor", [])
    return {row["mutant"]: row["reason"] for row in rows}


def main(argv: Sequence[str] | None = None) -> int:
    """Try them; returns 0 when every mutant was killed or has a reason to survive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    known, rows = reasons(), []
    mutants = sample(options.count, options.seed)
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, killer in zip(mutants, pool.map(killed_by, mutants), strict=True):
            reason = known.get(mutant.name, "") if killer is None else ""
            word = "killed  " if killer else ("reason  " if reason else "SURVIVED")
            print(f"{word} {mutant.name}", flush=True)
            row = {"mutant": mutant.name, "file": mutant.file, "killed_by": killer}
            rows.append({**row, "reason": reason} if killer is None else row)
    survived = [row for row in rows if row["killed_by"] is None]
    open_ones = [row for row in survived if not row["reason"]]
    print(f"{len(rows)} mutants, {len(survived)} survived, {len(open_ones)} without a reason")
    if options.out:
        facts = {
            "command": f"python -m benchmarks.mutants --count {options.count} --seed {options.seed}",
            "date": time.strftime("%Y-%m-%d"),
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
            "mutants": rows,
        }
        options.out.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
