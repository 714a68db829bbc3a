"""Writes log lines in the common format, with the standard library only; never raises."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from datetime import UTC, datetime


def say(level: str, event: str, **fields: object) -> None:
    """One line of JSON on stderr."""
    row = {
        "service": "init",
        "run_id": os.environ.get("HEADWAY_RUN_ID", ""),
        "component": "init",
        **fields,
        "event": event,
        "level": level,
        "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
    }
    with contextlib.suppress(OSError, ValueError):  # a full disk, a lost terminal
        sys.stderr.write(json.dumps(row, default=str) + "\n")
        sys.stderr.flush()
