"""The benchmark of the meeting in the store plays every rank, and refuses what it cannot play."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "benchmarks.startup", "--times", "1", "--ranks"]


def test_all_ranks_meet_with_requests_that_depend_on_their_place_only(tmp_path: Path) -> None:
    out = tmp_path / "startup.json"
    subprocess.run([*COMMAND, "128", "192", "--out", str(out)], check=True, timeout=120)
    found = json.loads(out.read_text())["rows"]
    ends = {size: row["ranks_by_requests"] for size, row in found.items()}
    assert ends == {"128": {"7": 32, "9": 96}, "192": {"7": 48, "9": 144}}


def test_ranks_that_fill_no_grid_are_refused() -> None:
    found = subprocess.run([*COMMAND, "100"], capture_output=True, text=True, check=False)
    assert found.returncode == 2 and "cannot be divided by 64" in found.stderr
