"""Why a bed cannot run here: tries what it needs in namespaces that end with the attempt."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headway.common.node.testing import child_environment
from headway.testkit.bed import kernel

_NAMESPACES = {
    "mnt": kernel.NEW_MOUNTS,
    "uts": kernel.NEW_HOST_NAME,
    "ipc": kernel.NEW_IPC,
    "pid": kernel.NEW_PIDS,
    "net": kernel.NEW_NETWORK,
}
_DROP_NOTHING = '"1,6 0 0 0"'


@functools.cache
def missing() -> str:
    """One line, "" if nothing is missing."""
    if not sys.platform.startswith("linux") or os.geteuid():
        return "separate nodes need root on Linux"
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            return f"`{tool}` is not installed (Debian: apt-get install iproute2)"
    absent = [name for name in _NAMESPACES if not Path(f"/proc/self/ns/{name}").exists()]
    if absent:
        return f"the kernel has no namespaces of the kind {', '.join(absent)}"
    command = [sys.executable, "-m", "headway.testkit.bed.probe"]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True)
    return "" if not done.returncode else (done.stderr.splitlines() or ["the probe failed"])[-1]


def main() -> None:
    """Raises OSError with the first thing that this kernel or container refuses."""
    kernel.unshare(functools.reduce(int.__or__, _NAMESPACES.values()) & ~kernel.NEW_PIDS)
    kernel.keep_mounts_private()
    with tempfile.TemporaryDirectory() as folder:
        kernel.mount("probe", folder, "tmpfs")
        layers = [Path(folder) / name for name in ("upper", "work", "merged", "copy")]
        for layer in layers:
            layer.mkdir()
        upper, work, merged, copy = map(str, layers)
        options = f"lowerdir=/etc,upperdir={upper},workdir={work}"
        kernel.mount("probe", merged, "overlay", options=options)
        kernel.attach(kernel.detached("/etc"), copy)
        kernel.make_read_only(copy)
        subprocess.run(["umount", copy, merged, folder], check=True)
    _try("ip", "link add probe type bridge", "link add one type veth peer name two")
    _try(
        "tc",
        "qdisc add dev one clsact",
        f"filter add dev one ingress protocol all prio 1 handle 1 bpf da bytecode {_DROP_NOTHING}",
    )
    kernel.unshare(kernel.NEW_PIDS)  # last: the next child would be process 1 of all later ones


def _try(tool: str, *lines: str) -> None:
    done = subprocess.run(
        [tool, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True
    )
    if done.returncode:
        raise OSError(f"{tool}: {' '.join(done.stderr.split())}")


if __name__ == "__main__":
    main()
