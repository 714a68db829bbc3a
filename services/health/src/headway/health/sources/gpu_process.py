"""Reads NVML in a process of its own: one line of JSON for each line on standard input.

``python -m headway.health.sources.gpu_process LIBRARY``; it ends with its input.
"""

from __future__ import annotations

import sys

import msgspec
from headway.health.sources.nvml import Nvml, Reading


def main(library: str) -> int:
    """Serve until the input ends; returns the exit code."""
    nvml: Nvml | None = None
    for _ in sys.stdin.buffer:
        try:
            nvml = nvml or Nvml(library)
            reading = nvml.read()
        except OSError as error:
            nvml, reading = None, Reading(error=str(error))
        sys.stdout.buffer.write(msgspec.json.encode(reading) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
