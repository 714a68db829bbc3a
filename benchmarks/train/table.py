"""The results of the comparison as Markdown tables, for docs/benchmarks.md.

python -m benchmarks.train.table benchmarks/results/train_*.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS = {
    "one_process": ("tokens_per_s", "share_of_limit", "gflops", "spread"),
    "several": ("tokens_per_s", "spread"),
    "executor": ("median_s", "over_theory_percent", "spread"),
    "memory": ("peak_mib", "libraries_mib", "tokens_per_gb"),
}


def tables(path: Path) -> str:
    """One file's rows: a line per side, with our median ratio to it."""
    facts = json.loads(path.read_text())
    module = path.stem.removeprefix("train_")
    columns = COLUMNS.get(module, ("tokens_per_s", "median_s"))
    machine = facts["machine"]
    head = ["what", "side", *columns, "its time over ours", "variant"]
    lines = [
        f"`{facts['command']}`, {machine.get('cpu', '')}, {machine['date']}, {facts['dtype']}:",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for name, row in facts["rows"].items():
        for side, found in row["sides"].items():
            ratio = row["ratios"].get(side, {}).get("median", "")
            cells = [name, side, *(_cell(found, column) for column in columns)]
            lines.append(f"| {' | '.join([*cells, str(ratio), found.get('variant', '')])} |")
    return "\n".join(lines)


def _cell(found: Mapping[str, Any], column: str) -> str:
    value = found.get(column, "")
    if isinstance(value, list):
        return ", ".join(f"{item:,.0f}" for item in value)
    return f"{value:,.0f}" if column == "tokens_per_s" and value != "" else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Print every file's table."""
    for path in sys.argv[1:] if argv is None else argv:
        print(tables(Path(path)), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
