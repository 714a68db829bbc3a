"""A rank that hangs: its flight ring has records, one of which never ends."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from headway.common.node.testing import python_child, read_line

HANGING_RANK = """
import sys, time
from pathlib import Path
from headway.common.node.flight import FlightWriter
writer = FlightWriter.create(Path(sys.argv[1]), int(sys.argv[2]), capacity=64)
for step in range(5):
    number = writer.begin(1, step=step)
    if step != 2:
        writer.end(number)
print("up", flush=True)
time.sleep(100)
"""


@contextlib.contextmanager
def hanging_rank(ring: Path, rank: int) -> Iterator[subprocess.Popen[str]]:
    """A process that has ended all of its records but the third."""
    with python_child(HANGING_RANK, ring, rank) as child:
        assert read_line(child) == "up"
        yield child
