"""Reads NVML in a process of its own: one line of JSON for each line on standard input.

An empty line asks for a reading, and one with a number for a burst of so many seconds.

``python -m headway.health.sources.gpu_process LIBRARY``; it ends with its input.
"""

from __future__ import annotations

import sys

import msgspec
from headway.health.sources.gpu_burst import GpuBursts, gpu_burst
from headway.health.sources.nvml import Nvml, Reading


def main(library: str) -> int:
    """Serve until the input ends; returns the exit code."""
    nvml: Nvml | None = None
    for line in sys.stdin.buffer:
        seconds = line.strip()
        answer: Reading | GpuBursts
        try:
            nvml = nvml or Nvml(library)
            answer = gpu_burst(nvml, float(seconds)) if seconds else nvml.read()
        except OSError as error:
            nvml = None
            answer = GpuBursts(error=str(error)) if seconds else Reading(error=str(error))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
