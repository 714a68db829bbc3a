"""Start simulated machines by hand: ``python -m headway.testkit.bed --nodes 5 --shell 0``."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from headway.testkit.bed.bed import Bed
from headway.testkit.bed.node import Node


def main(argv: Sequence[str] | None = None) -> int:
    """Start nodes, print how to enter them, and wait. Exits 2 if they cannot run here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--shell", type=int, metavar="NODE", help="open a shell on this node")
    parser.add_argument("--shared", type=Path, action="append", default=[], metavar="FOLDER")
    options = parser.parse_args(argv)
    if reason := Bed.missing():
        print(reason, file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="headway-bed-") as folder,
        Bed(Path(folder), nodes=options.nodes, shared=options.shared) as bed,
    ):
        for node in bed.nodes:
            print(f"{node.name}  {node.address}  nsenter -a -t {node.pid}  {node.root}", flush=True)
        if options.shell is not None:
            return _shell(bed.node(options.shell))
        for number in (signal.SIGINT, signal.SIGTERM):
            # SIGINT, too: a shell starts what it puts in the background with SIGINT ignored
            signal.signal(number, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            print("press Ctrl-C to end them", flush=True)
            while True:
                time.sleep(0.5)  # signal.pause() would miss a signal that arrives just before it
    return 0


def _shell(node: Node) -> int:
    environment = {**node.environment, "SHELL": os.environ.get("SHELL", "/bin/sh")}
    command = ["nsenter", "-a", "-t", str(node.pid), "sh", "-c", 'cd && exec "$SHELL"']
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
