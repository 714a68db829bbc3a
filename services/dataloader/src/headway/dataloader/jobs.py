"""Keeps two jobs apart that use one daemon without having said so.

A stream without a job belongs to the process that reads it first. Another process that asks for the
same place while the first one lives gets a job of its own, named after the process; that is how two
scripts with equal settings each get all of their batches.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from headway.common.node.process import ProcessId
from headway.dataloader.config import StreamSpec
from headway.dataloader.filled_stream import Stream

_NAME = re.compile(r"p(\d+)-(\d+)")


def process_name(spec: StreamSpec) -> str:
    """What a client sends as ``OpenStream.process``: "" with a job, or with several readers."""
    if spec.job or spec.num_readers > 1:
        return ""
    me = ProcessId.current()
    return f"p{os.getpid()}-{me.start_ticks}"


def job_for(spec: StreamSpec, process: str, streams: Iterable[Stream]) -> str:
    """The job of a new request: its own, or ``process`` where another one holds the place."""
    if spec.job or not process:
        return spec.job
    place = (spec.dp_rank, spec.split)
    for stream in streams:
        known = stream.spec
        if (known.dp_rank, known.split) != place:
            continue
        if known.job == process:
            return process
        if not known.job and stream.owner not in ("", process) and is_living(stream.owner):
            return process
    return ""


def is_living(process: str) -> bool:
    """Whether the process of this name lives; True for any other name."""
    found = _NAME.fullmatch(process)
    return found is None or not ProcessId(int(found[1]), int(found[2])).is_terminating()
