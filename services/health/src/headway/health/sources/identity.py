"""What a machine is: its type, its GPUs and NICs, the versions of driver and kernel."""

from __future__ import annotations

import os
from pathlib import Path

from headway.common.wire.messages.health import Gpu, Machine
from headway.health.sources.changes import read_text
from headway.health.sources.nics import read_nics


def read_machine(sysfs: Path, gpus: tuple[Gpu, ...] = (), driver: str = "") -> Machine:
    """The machine's identity. GPUs and their driver come from NVML, which may not have answered.

    Reads sysfs, which may block in the firmware of an adapter.
    """
    smbios = sysfs / "class" / "dmi" / "id"
    words = [read_text(smbios / name) for name in ("sys_vendor", "product_name")]
    return Machine(
        host_type=" ".join(filter(None, words)),
        kernel=os.uname().release,
        driver=driver,
        gpus=gpus,
        nics=read_nics(sysfs),
    )
