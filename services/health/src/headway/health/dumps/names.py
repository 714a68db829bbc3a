"""What the name of a file gives away: a rank, a host, and whether it was made before or after.

``nccl_trace_rank_gpu-a02_5`` is of rank 5, ``dmesg_gpu-a02.txt`` of the host gpu-a02, and
``counters/gpu-b05.before.txt`` of gpu-b05 before the job.
"""

from __future__ import annotations

import re
from typing import Final, Literal

Phase = Literal["before", "after", ""]
_RANK: Final = (
    re.compile(r"(?:rank|dump|trace)\w*?[-_](?:\S*?[-_.])?(\d{1,9})(?:\.\w{1,8})?$", re.IGNORECASE),
    re.compile(r"(?:^|[^a-z])rank[-_.=]?(\d{1,9})(?!\d)", re.IGNORECASE),
    re.compile(r"^r[-_.]?(\d{1,9})(?![\da-z])", re.IGNORECASE),
)
_ENDINGS: Final = frozenset((
    "txt", "log", "out", "err", "csv", "json", "prom", "text", "gz", "pickle", "pkl", "bin",
))  # fmt: skip
_FORMATS: Final = frozenset((
    "after", "before", "counter", "counters", "dcgm", "dmesg", "dump", "dumps", "faulthandler",
    "ib", "journal", "journalctl", "kern", "kernel", "kmsg", "messages", "metrics", "nccl",
    "ncclras", "nic", "nvidia", "output", "perfquery", "ports", "post", "pre", "prometheus", "py",
    "pyspy", "ras", "smi", "spy", "stack", "stacks", "stderr", "stdout", "syslog", "tests", "trace",
    "train",
))  # fmt: skip
_NO_HOST: Final = re.compile(
    r"(?:rank|r|worker|trainer|attempt|dump|trace|step|epoch|iter|run|job|case|exp|test|v|pid|part|"
    r"log|gpu|on|of|host|node)[-_]?\d*",
    re.IGNORECASE,
)
_NUMBERED_HOST: Final = re.compile(r"(?:gpu|host|node)-?\d+", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d])")
_BEFORE: Final = frozenset(("before", "pre", "start", "old"))
_AFTER: Final = frozenset(("after", "post", "end", "new"))


def rank_of_name(name: str) -> int:
    """The rank in a file's name, or in that of its folder (``rank_5/stderr.log``); else -1."""
    for part in _parts(name):
        for pattern in _RANK:
            if found := pattern.search(part):
                return int(found[1])
    return -1


def host_of_name(name: str) -> str:
    """The host in a file's name, or in that of its folder; empty if none is there.

    It is what remains without the words of formats and the endings, if that is one word: with a
    digit, or next to the word of a format (``dmesg_alpha.txt``).
    """
    for part in _parts(name):
        if found := _ADDRESS.search(part):
            return found[0]
        hosts, has_format = _hosts(part)
        numbered = [host for host in hosts if re.search(r"\d", host)]
        if len(numbered) == 1:
            return numbered[0]
        if len(hosts) == 1 and has_format:
            return hosts[0]
    return ""


def phase_of_name(name: str) -> Phase:
    """Whether a file was made before or after what is examined, by its name or its folders."""
    for part in reversed(name.replace("\\", "/").split("/")):
        words = set(re.split(r"[^a-z]+", part.lower()))
        if words & _BEFORE:
            return "before"
        if words & _AFTER:
            return "after"
    return ""


def _parts(name: str) -> list[str]:
    """The file's name and then that of its folder."""
    return [part for part in reversed(name.replace("\\", "/").split("/")) if part][:2]


def _hosts(part: str) -> tuple[list[str], bool]:
    """The words of a name that may be hosts, and whether the word of a format is among the rest."""
    found, has_format = [], False
    for piece in part.split("_"):
        word, is_of_format = _strip(piece)
        has_format |= is_of_format
        is_host = re.fullmatch(r"[A-Za-z][\w.-]{1,252}", word) is not None
        if is_host and (_NUMBERED_HOST.fullmatch(word) or not _NO_HOST.fullmatch(word)):
            found.append(word)
    return found, has_format


def _strip(piece: str) -> tuple[str, bool]:
    """A word without endings and words of formats around it, and whether one of a format went."""
    pieces = re.split(r"([.-])", piece)
    has_format = False
    for end in (-1, 0):
        while pieces and (
            pieces[end].lower() in _ENDINGS | _FORMATS or pieces[end] in ("", ".", "-")
        ):
            has_format |= pieces.pop(end).lower() in _FORMATS
    return "".join(pieces), has_format
