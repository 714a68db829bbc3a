"""Signs of a broken machine, written where the agent of a node reads them.

Only into files that stand for the machine's: its own kernel log is also read by others, who might
drain it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.files import replace_file
from headway.common.node.process import ProcessId

KERNEL_LINE = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=headway-inject, GPU has fallen off the bus."
)
_ECC_WORD = 4
_COUNTER = "class/infiniband/*/ports/*/counters/link_downed"


def write_evidence(fault: str, agent: ProcessId) -> str:
    """Write the sign that ``fault`` stands for; returns what was written and where.

    Raises:
        InputError: the agent reads the machine itself. OSError: it cannot be written.
    """
    return EVIDENCE[fault](agent)


def _kernel(agent: ProcessId) -> str:
    file = _source(agent, "HEADWAY_KMSG", "the machine's own kernel log")
    with file.open("a") as opened:
        opened.write(KERNEL_LINE + "\n")
    return f"{KERNEL_LINE!r} written to {file}"


def _counter(agent: ProcessId) -> str:
    root = _source(agent, "HEADWAY_SYSFS_ROOT", "the machine's own counters")
    found = sorted(root.glob(_COUNTER))
    if not found:
        raise InputError(f"{root} has no {_COUNTER}", remedy="add the tree of an adapter")
    count = int(found[0].read_text()) + 1
    found[0].write_text(f"{count}\n")
    return f"{found[0]} is {count}"


def _gpu(agent: ProcessId) -> str:
    """One more memory error of the first GPU; see services/health/tests/nvml_fake.c."""
    file = _source(agent, "FAKE_NVML", "the machine's own GPUs")
    first, *others = file.read_text().splitlines()
    words = first.split()
    words[_ECC_WORD] = str(int(words[_ECC_WORD]) + 1)
    replace_file(file, "\n".join([" ".join(words), *others, ""]).encode())
    return f"GPU {words[1]} has {words[_ECC_WORD]} memory errors in {file}"


EVIDENCE: dict[str, Callable[[ProcessId], str]] = {
    "kernel": _kernel,
    "counter": _counter,
    "gpu": _gpu,
}


def _source(agent: ProcessId, variable: str, own: str) -> Path:
    """What the agent reads instead of the machine's own, by its environment."""
    words = Path(f"/proc/{agent.pid}/environ").read_bytes().split(b"\0")
    name = variable.encode() + b"="
    found = next((word[len(name) :] for word in words if word.startswith(name)), b"")
    if not found:
        raise InputError(
            f"the agent reads {own}, which is not changed",
            remedy=f"start the run with {variable} set to a stand-in",
        )
    path = Path(os.fsdecode(found)).resolve()
    if not (path.is_file() or path.is_dir()) or path.is_relative_to("/sys"):
        raise InputError(
            f"{variable}={path} is not a stand-in, but {own}",
            remedy="set it to a file or folder of your own",
        )
    return path
