"""What ``ps``, ``top`` and ``nvidia-smi`` show of a worker: a forked one would be its zygote."""

from __future__ import annotations

import os

# Else the title may cover the environment, by which the processes of a run are found.
os.environ.setdefault("SPT_NOENV", "1")

try:
    from setproctitle import setproctitle as _set
except ImportError:  # a bare GPU image
    _set = None  # type: ignore[assignment]


def set_title(run: str, what: str) -> None:
    """Show ``headway RUN: what``; no effect without the package setproctitle."""
    if _set is not None:
        _set(f"headway {run}: {what}")
