"""Tries what a bed needs of the kernel, in namespaces that end with this process.

``python -m headway.testkit.bed.trial`` fails with the first thing that is refused.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from headway.testkit.bed import kernel

_DROP_NOTHING = '"1,6 0 0 0"'


def main() -> None:
    """Raises OSError with the first thing that this kernel or container refuses."""
    kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_HOST_NAME | kernel.NEW_IPC | kernel.NEW_NETWORK)
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
