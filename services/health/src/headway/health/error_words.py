"""What the text of an error says about its cause: one rule, live and for folders."""

from __future__ import annotations

from typing import Final, Literal

from headway.common.wire.messages.health import Cause

ErrorWords = Literal["others", "memory", "disk", "device", "program"]
"""``others``: another rank has gone or does not answer."""

_OF_OTHERS = (
    "closed by peer", "connection reset", "remote process exited", "connection closed by remote",
    "watchdog", "collective operation timeout", "broken pipe", "timed out waiting", "sigterm",
    "aborted", "dist_backend", "distbackenderror", "childfailed", "socket timeout",
)  # fmt: skip
_MEMORY = ("outofmemory", "out of memory", "memoryerror")
_DISK = ("no space left", "input/output error", "stale file handle", "read-only file system")
_PROGRAM = ("device-side assert",)
"""An assertion of the program, which it wrote to be checked on the device."""
_DEVICE = ("cuda error", "cublas", "cudnn", "nccl error", "ecc error")
_CAUSES: Final[dict[ErrorWords, tuple[Cause, str]]] = {
    "others": ("unknown", "find the rank that failed first: this error follows from another one's"),
    "memory": (
        "out_of_memory",
        "use less memory there: a smaller micro-batch or more sharding",
    ),
    "disk": ("disk_fault", "repair that disk or mount before the job starts again"),
    "device": (
        "gpu_fault",
        "read the kernel's log of that node for an Xid before it is used again",
    ),
    "program": ("program_error", "correct the program: a restart would meet the same error"),
}


def words_of(text: str) -> ErrorWords:
    """What an error is about; what names nothing else comes from the program."""
    lower = text.lower()
    kinds: tuple[tuple[ErrorWords, tuple[str, ...]], ...] = (
        ("others", _OF_OTHERS),
        ("memory", _MEMORY),
        ("disk", _DISK),
        ("program", _PROGRAM),
        ("device", _DEVICE),
    )
    return next((kind for kind, known in kinds if any(one in lower for one in known)), "program")


def is_of_others(text: str) -> bool:
    """Whether an error says that another rank has gone or does not answer."""
    return words_of(text) == "others"


def cause_of_error(text: str) -> tuple[Cause, str]:
    """The cause of an error, and what to do about it."""
    return _CAUSES[words_of(text)]
