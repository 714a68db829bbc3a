"""Does each check fail when what it guards is broken?
``python -m benchmarks.mutations [--only NAME]``.

Every entry of ``mutations.toml`` changes one place of a copy of the source and names the test that
must catch it; it survives when that test passes. The copy comes first on the path of the test and
of every process that it starts.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutant_bench import ROOT, Bench
from benchmarks.report import finish, parser


@dataclass(frozen=True)
class Mutation:
    """``old`` stands once in ``file``; with ``new`` in its place ``test`` must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str


ROWS = tomllib.loads(Path(__file__).with_name("mutations.toml").read_text())["mutation"]
MUTATIONS = tuple(Mutation(**row) for row in ROWS)


def caught_by(mutation: Mutation, bench: Bench) -> str | None:
    """The first failing test, None if the mutation survives.

    Raises:
        ValueError: the place to change is not there exactly once, or the test did not run.
    """
    text = (ROOT / mutation.file).read_text()
    if (number := text.count(mutation.old)) != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} holds the place {number} times")
    code = text.replace(mutation.old, mutation.new)
    caught = bench.killed_by(mutation.file, code, [mutation.test])
    if caught is not None and not caught.startswith("FAILED "):
        raise ValueError(f"{mutation.name}: {caught}\n{bench.log.read_text()[-2000:]}")
    return caught


def main(argv: Sequence[str] | None = None) -> int:
    """Run them; returns 0 when every mutation was caught."""
    options = parser(__doc__)
    options.add_argument("--only", default="", help="mutations whose name contains this")
    given = options.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory(prefix="headway-mutation-") as folder:
        bench = Bench(Path(folder))
        for mutation in MUTATIONS:
            if given.only in mutation.name:
                caught = caught_by(mutation, bench)
                rows.append({"mutation": mutation.name, "file": mutation.file, "caught_by": caught})
                word = "caught  " if caught else "SURVIVED"
                print(f"{word} {mutation.name}: {caught or mutation.test}", flush=True)
    wrong = [f"{row['mutation']} survived" for row in rows if row["caught_by"] is None]
    wrong += [] if rows else [f"no mutation is named {given.only}"]
    return finish(given.out, wrong, "all were caught", mutations=rows)


if __name__ == "__main__":
    sys.exit(main())
