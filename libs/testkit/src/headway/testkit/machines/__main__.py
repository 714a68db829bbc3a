"""``python -m headway.testkit.machines CONFIG``: train on separate machines of this host.

Four machines train and one is a spare; each has its own network, processes, /dev/shm, /tmp and
disk. Needs root. Ctrl-C stops the run with a checkpoint; the records stay in ``--folder``.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from headway.common.config import load
from headway.common.errors import HeadwayError
from headway.testkit.bed import Process
from headway.testkit.machines import Machines
from headway.testkit.machines.machines import Way, placement
from headway.testkit.machines.slurm import Slurm
from headway.trainer.config import RunConfig

LOOK_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of ``headway run``; 2 if machines cannot be had here."""
    parser = argparse.ArgumentParser(
        prog="python -m headway.testkit.machines",
        description=__doc__.replace("``", "`"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--count", type=int, default=5, help="machines, one of them a spare")
    parser.add_argument("--slurm", action="store_true", help="use steps of a Slurm job")
    parser.add_argument("--folder", type=Path, default=Path("runs/machines"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(argv)
    if reason := Machines.missing() or (Slurm.missing() if options.slurm else ""):
        print(f"error: this host cannot simulate machines: {reason}", file=sys.stderr)
        return 2
    try:
        placed = [*placement(options.count), *options.set]
        corpus = _corpus(load(RunConfig, [options.config], placed))
        options.folder.mkdir(parents=True, exist_ok=True)
        visible = [corpus, options.config.resolve().parent]
        way: Way = "slurm" if options.slurm else "bed"
        with Machines(options.folder, count=options.count, visible=visible, way=way) as machines:
            settings = [f"data.path={corpus}", *options.set]
            return _stay(machines, options.config.resolve(), settings)
    except HeadwayError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _corpus(config: RunConfig) -> Path:
    """The corpus, prepared here if it is absent: machines cannot write where it is."""
    folder = Path(config.data.path).resolve()
    if not folder.exists():
        words = ["prepare", "--source", config.data.source, "--out", str(folder)]
        subprocess.run([sys.executable, "-m", "headway.dataloader", *words], check=True)
    return folder


def _stay(machines: Machines, config: Path, settings: Sequence[str]) -> int:
    for node in machines.bed.nodes:
        role = "console" if node is machines.head else "machine"
        print(f"{node.name}  {role}  {node.address}  nsenter -a -t {node.pid}", flush=True)
    run = machines.foreground("run", config, *machines.options(settings))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    while run.poll() is None:
        try:
            time.sleep(LOOK_S)
        except KeyboardInterrupt:
            run.send_signal(signal.SIGINT)
    return _code(run)


def _code(run: Process) -> int:
    try:
        return run.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return 1


if __name__ == "__main__":
    sys.exit(main())
