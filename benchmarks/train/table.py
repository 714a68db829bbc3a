"""Puts the results of the comparison into docs/benchmarks.md, between its comments.

    python -m benchmarks.train.table [--into docs/benchmarks.md]

Without ``--into`` the tables are printed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.train.report import RESULTS

COLUMNS = {
    "one_process": {"tokens_per_s": "tokens/s", "share_of_limit": "share of limit"},
    "several": {"tokens_per_s": "tokens/s"},
    "executor": {"over_theory_percent": "% over theory"},
    "overlap": {"hidden_percent": "% hidden"},
    "models": {"tokens_per_s": "tokens/s"},
    "memory": {"peak_mib": "peak MiB, each rank", "libraries_mib": "libraries"},
}


def table(path: Path) -> str:
    """One file's rows: a line per side, with our median ratio to it."""
    facts = json.loads(path.read_text())
    columns = COLUMNS[path.stem.removeprefix("train_")]
    machine = facts["machine"]
    measure = "peak" if "peak_mib" in columns else "time"
    head = ["what", "side", *columns.values(), "spread", f"its {measure} / ours"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, {facts['dtype']},",
        f"{machine['date'].split()[0]}, load {machine['load_average'][0]} at the end:",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for name, row in facts["rows"].items():
        for side, found in row["sides"].items():
            ratio = row["ratios"].get(side, {}).get("median", "")
            cells = [_cell(found.get(column, "")) for column in columns]
            words = [name, side, *cells, _cell(found.get("spread", "")), str(ratio)]
            lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines)


def put(page: str, name: str, text: str) -> str:
    """``page`` with ``text`` between its comments ``train_NAME`` and ``end``.

    Raises:
        ValueError: the page has no such comments.
    """
    begin = f"<!-- {name} -->"
    found = re.sub(
        rf"(?s){begin}\n.*?<!-- end -->", lambda _: f"{begin}\n{text}\n<!-- end -->", page
    )
    if begin not in page:
        raise ValueError(f"no comment {begin} on the page")
    return found


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"{item:,.0f}" for item in value)
    if isinstance(value, float) and value >= 1000:
        return f"{value:,.0f}"
    return str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Print every table that has results, or put it into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--into", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    files: Mapping[str, Path] = {name: options.results / f"train_{name}.json" for name in COLUMNS}
    for name, file in files.items():
        if not file.exists():
            print(f"{file} is not there", file=sys.stderr)
        elif options.into is None:
            print(table(file), end="\n\n")
        else:
            page = options.into.read_text()
            options.into.write_text(put(page, f"train_{name}", table(file)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
