"""Every layout against one process, as ``make matrix`` runs it;
one JSON, a row per layout and type.

    python -m benchmarks.matrix --out benchmarks/results/matrix.json [--only tp2] [--dtypes fp64]

The bars stand in ``headway.testkit.trainer.layouts.BARS``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headway.testkit.trainer.layouts import BARS, STEPS, Layout, all_layouts, single
from headway.testkit.trainer.pool import WorkerPool, worker_pool
from headway.testkit.trainer.training import Trained, distance, train_layout

from benchmarks.report import finish, parser


def main() -> int:
    """Run the matrix; returns how many rows miss their bar."""
    options = parser(__doc__, out=Path("benchmarks/results/matrix.json"))
    options.add_argument("--only", default="", help="run only layouts whose name contains this")
    options.add_argument("--dtypes", default="fp64,fp32,bf16")
    given = options.parse_args()
    started_s = time.monotonic()
    with worker_pool(8) as pool, tempfile.TemporaryDirectory() as folder:
        rows = run(pool, Path(folder), given.only, given.dtypes.split(","))
    wrong = [f"{row['layout']} in {row['dtype']}" for row in rows if not row["ok"]]
    print(f"{len(rows) - len(wrong)} of {len(rows)} within the bars; {given.out}")
    took_s = round(time.monotonic() - started_s, 1)
    return finish(given.out, wrong, bars=BARS, duration_s=took_s, rows=rows)


def run(pool: WorkerPool, folder: Path, only: str, dtypes: list[str]) -> list[dict[str, Any]]:
    """One row per layout and type."""
    references: dict[tuple[str, str], Trained] = {}
    rows = []
    for layout in all_layouts():
        if only not in layout.name:
            continue
        for dtype in dtypes:
            key = (layout.block, dtype)
            if key not in references:
                place = folder / f"single-{layout.block}-{dtype}"
                references[key] = train_layout(pool, single(*key), 1, place, STEPS)
            row = compare(pool, folder / f"{layout.name}-{dtype}", layout, dtype, references[key])
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def compare(
    pool: WorkerPool, folder: Path, layout: Layout, dtype: str, expected: Trained
) -> dict[str, Any]:
    """Train one layout and measure how far it is from the single process."""
    started_s = time.monotonic()
    found = train_layout(pool, layout.config(dtype), layout.world_size, folder, STEPS)
    loss = max(abs(found.losses[step] - expected.losses[step]) for step in range(STEPS))
    grads, grads_of = distance(found.grads, expected.grads)
    params, params_of = distance(found.params, expected.params)
    error = max(grads, params) if dtype == "fp64" else loss
    return {
        "layout": layout.name,
        "dtype": dtype,
        "ok": error < BARS[dtype],
        "loss_error": loss,
        "gradient_error": grads,
        "worst_gradient": grads_of,
        "parameter_error": params,
        "worst_parameter": params_of,
        "duration_s": round(time.monotonic() - started_s, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
