"""Stand-ins for what an agent reads of the machine: a kernel log, counters of a port, a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

NVML = Path(__file__).resolve().parents[2] / "services/health/tests/nvml_fake.c"
PORT = "class/infiniband/mlx5_3/ports/1"
FILES = {
    f"sys/{PORT}/state": "4: ACTIVE",
    f"sys/{PORT}/phys_state": "5: LinkUp",
    f"sys/{PORT}/rate": "400 Gb/sec (4X NDR)",
    f"sys/{PORT}/link_layer": "InfiniBand",
    f"sys/{PORT}/counters/link_downed": "25",
    "kernel.log": "[    0.000000] Linux version 6.1",
    "gpus": "0 00000000:3B:00.0 0 0 5 16 0 4",
}


@contextmanager
def stand_ins() -> Iterator[Path]:
    """Have the agents of runs that are started meanwhile read these, in the folder it yields.

    Without a C compiler ``headway inject gpu`` is refused, as no GPU can be made up.
    """
    with tempfile.TemporaryDirectory(prefix="hw-signs-") as made:
        folder = Path(made)
        for name, text in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text + "\n")
        wanted = {
            "HEADWAY_KMSG": str(folder / "kernel.log"),
            "HEADWAY_SYSFS_ROOT": str(folder / "sys"),
        }
        if compiler := shutil.which("cc"):
            library = folder / "libnvidia-ml.so.1"
            words = [compiler, "-shared", "-fPIC", "-o", str(library), str(NVML)]
            subprocess.run(words, check=True)
            wanted |= {"HEADWAY_NVML": str(library), "FAKE_NVML": str(folder / "gpus")}
        with patch.dict(os.environ, wanted):
            yield folder
