"""Run the tests that need a GPU on a machine without a network, in parts of at most 10 minutes.

    python infra/gpu/gpu.py wheels          with a network: fill ``wheels/`` (``make gpu-wheels``)
    python3 infra/gpu/gpu.py run PART ...   on the GPU machine (``make gpu PART=model``)

The machine brings Python 3.12 for x86-64, torch with CUDA and numpy; everything else comes from
``wheels/``, which is carried along with the checkout. Only the standard library is used here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "wheels"
SITE = ROOT / ".gpu-site"
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PART_LIMIT_S = 570
PACKAGES = (
    # what workers, services and the driver import
    "annotated-doc", "click", "markdown-it-py", "mdurl", "msgpack", "msgspec", "prometheus-client",
    "psutil", "pygments", "pyzmq", "rich", "shellingham", "structlog", "tomli-w", "typer",
    "typing-extensions", "xxhash",
    # what tests import
    "attrs", "hypothesis", "iniconfig", "packaging", "pluggy", "pytest", "pytest-timeout",
    "sortedcontainers",
)  # fmt: skip
"""Wheels, each without its dependencies, so that the machine's torch and numpy stay."""
PARTS = {
    "model": ["tests/gpu/test_model.py", "tests/gpu/test_step.py"],
    "groups": ["tests/gpu/test_groups.py", "tests/gpu/test_layouts.py"],
    "recovery": ["tests/gpu/test_recovery.py"],
    "health": ["tests/gpu/test_position.py", "tests/gpu/test_health.py"],
}
"""Test files of each part, the cheapest first."""
BENCH = "bench"
"""The part that measures instead: ``benchmarks.train.gpu``, whose options are in ``ARGS``."""


def wheels() -> int:
    """Download the wheels that ``constraints.txt`` pins."""
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
        "--implementation", "cp", "--python-version", PYTHON, "-d", str(WHEELS),
        "-c", str(ROOT / "constraints.txt"),
        *(word for platform in PLATFORMS for word in ("--platform", platform)),
        *PACKAGES,
    ]  # fmt: skip
    return subprocess.run(command, check=False).returncode


def run(parts: list[str]) -> int:
    """Run the tests of ``parts``; nothing is left running after ``PART_LIMIT_S`` in all."""
    started_s = time.monotonic()
    unknown = [part for part in parts if part not in (*PARTS, BENCH)]
    if unknown or not parts:
        known = ", ".join((*PARTS, BENCH))
        what = f"unknown part {unknown[0]!r}" if unknown else "no part given"
        print(f"headway: {what}; use PART= one of {known}", file=sys.stderr)
        return 2
    if not _install():
        return 1
    env = _environment()
    show = "import sys, torch; print(sys.version.split()[0], torch.__version__, torch.version.cuda,"
    show += " torch.backends.cudnn.version(), torch.cuda.is_available() and"
    show += " torch.cuda.get_device_name())"
    subprocess.run([sys.executable, "-c", show], env=env, cwd=ROOT, check=False)
    files = [file for part in parts if part != BENCH for file in PARTS[part]]
    pytest = [sys.executable, "-m", "pytest", "-v", "--durations=15", "-W", "default", "-m", "gpu"]
    bench = [sys.executable, "-m", "benchmarks.train.gpu", *os.environ.get("ARGS", "").split()]
    commands = ([[*pytest, *files]] if files else []) + ([bench] if BENCH in parts else [])
    failed = 0
    for command in commands:
        left_s = PART_LIMIT_S - (time.monotonic() - started_s)
        try:
            done = subprocess.run(command, env=env, cwd=ROOT, timeout=left_s, check=False)
        except subprocess.TimeoutExpired:
            print(f"headway: stopped after {PART_LIMIT_S} s; run fewer parts", file=sys.stderr)
            return 1
        failed += done.returncode != 0
    return min(failed, 1)


def _install() -> bool:
    """Unpack the wheels into a folder of their own, once."""
    files = sorted(WHEELS.glob("*.whl"))
    if not files:
        print("headway: no wheels/; run `make gpu-wheels` where there is a network and carry the "
              "folder along", file=sys.stderr)  # fmt: skip
        return False
    mark = SITE / "installed"
    listed = "\n".join(file.name for file in files)
    if mark.exists() and mark.read_text() == listed:
        return True
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    command += ["--disable-pip-version-check", "--upgrade", "--target", str(SITE), *map(str, files)]
    if subprocess.run(command, check=False).returncode != 0:
        return False
    mark.write_text(listed)
    return True


def _environment() -> dict[str, str]:
    """The sources and the wheels on Python's path, for child processes too."""
    sources = [*sorted(ROOT.glob("*/*/src")), ROOT / "console" / "src"]
    path = [*map(str, sources), str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4"),
        "PYTHONUNBUFFERED": "1",
    }


def main(words: list[str]) -> int:
    """``wheels`` or ``run PART ...``; parts may be joined by commas."""
    if words == ["wheels"]:
        return wheels()
    if words[:1] == ["run"]:
        return run([part for word in words[1:] for part in re.split(r"[,|]", word) if part])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
