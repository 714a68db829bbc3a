"""Peers that are not part of torch: litgpt, megatron-core, torchtitan, in an environment of theirs.

    python -m benchmarks.train.outside FOLDER

makes that environment: the packages without their dependencies, on top of this one's torch. Its
Python, ``FOLDER/bin/python``, is what ``--peers`` of the other modules takes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from benchmarks.train.report import Options
from benchmarks.train.shapes import Shape
from benchmarks.train.sides import Spec, specs

ALONE = ("litgpt", "megatron-core", "torchtitan", "lightning", "torchmetrics", "pytorch-lightning")
"""Installed without dependencies, because those would replace torch."""
MISSING = ("lightning-utilities", "tyro")
"""Dependencies that are not in our environment; they do not need torch."""
TORCHTITAN = "import torchtitan.train"
LIMIT_S = 120.0


def litgpt_specs(
    options: Options, shape: Shape, *, threads: int, micros: Sequence[int]
) -> list[Spec]:
    """litgpt's ``GPT``, compiled."""
    run = "benchmarks.train.peer_litgpt:run"
    how = {"precision": "autocast" if options.is_narrow else "fp32", "compile": options.compiles}
    return specs("litgpt", run, shape, micros, threads=threads, python=options.peers, **how)


def megatron_specs(options: Options, shape: Shape, *, world: int) -> list[Spec]:
    """megatron-core's ``GPTModel`` with tensor parallelism."""
    run, micros = "benchmarks.train.peer_megatron:run", (shape.batch, shape.batch // 2)
    how = {"python": options.peers, "precision": options.dtype}
    return specs("megatron-core", run, shape, micros, world=world, **how)


def torchtitan_error(options: Options) -> str:
    """How torchtitan's trainer fails on this machine, or "" if it was not tried or imports."""
    if not options.peers:
        return "not tried: no --peers"
    done = subprocess.run(
        [options.peers, "-c", TORCHTITAN],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode == 0:
        return "imports; its trainer has no CPU device (its attention has no backward on CPUs)"
    return done.stderr.strip().splitlines()[-1]


def make(folder: Path) -> None:
    """Create the environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    where = subprocess.check_output([python, "-c", code], text=True).strip()
    ours = sysconfig.get_path("purelib")
    # addsitedir, because our own packages are listed in .pth files there
    line = f"import site; site.addsitedir({ours!r})\n"
    (Path(where) / "headway_environment.pth").write_text(line)
    install = [sys.executable, "-m", "uv", "pip", "install", "--python", python]
    subprocess.run([*install, "--no-deps", *ALONE], check=True)
    subprocess.run([*install, *MISSING], check=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Make the environment and print its Python."""
    parser = argparse.ArgumentParser(description="An environment with the other peers.")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(argv)
    make(options.folder)
    print(options.folder / "bin" / "python")
    return 0


if __name__ == "__main__":
    sys.exit(main())
