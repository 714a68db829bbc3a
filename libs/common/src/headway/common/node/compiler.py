"""Whether this machine has what torch's compiler needs beside torch."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

INSTALL_COMPILER = (
    "install one (apt install g++; on GPUs gcc and python3-dev) or set CXX or CC to one; or set "
    "train.compile=false"
)


def lack_for_compiling(*, on_gpu: bool) -> str:
    """What torch's compiler needs and this machine lacks, as a clause; "" if nothing is.

    On CPUs it starts a C++ compiler. On GPUs Triton builds a launcher for each kernel with a C
    compiler and Python's headers.
    """
    if not on_gpu:
        compiler = os.environ.get("CXX", "g++")
        return "" if shutil.which(compiler) else f"the C++ compiler {compiler} is missing"
    choices = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    if not any(map(shutil.which, choices)):
        return f"a C compiler ({' or '.join(choices)}) is missing"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return "" if header.is_file() else f"{header} is missing"
