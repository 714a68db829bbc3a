"""Commands on the nodes of a bed by way of a socket, as ssh and a power switch give them.

    python -m headway.testkit.bed.remote SOCKET NAME run WORDS...    runs them on the node
    python -m headway.testkit.bed.remote SOCKET NAME off             cuts its power
    python -m headway.testkit.bed.remote SOCKET NAME new             brings another machine

The bed's owner serves the socket, in a folder that the nodes share, so that a node may reach
another one as the console does.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.common.errors import HeadwayError
from headway.testkit.bed.bed import Bed
from headway.testkit.bed.node import Node

LIMIT_S = 120.0
NOT_REACHED = 255
"""The exit code by which ssh(1) reports that it did not reach the machine."""


class Remote:
    """Serves until its ``with`` block ends.

    A node that is down, frozen or cut off from the one that asks is not reached.
    """

    def __init__(self, bed: Bed, path: Path) -> None:
        self._bed, self.path = bed, path
        self.cut_off: set[tuple[str, str]] = set()
        """Pairs (asking host, host) between which nothing passes."""
        self.rebuild: Callable[[Node], None] | None = None
        """Makes the node another machine of the same name, which is up; None: there is none."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(64)
        threading.Thread(target=self._serve, name="remote", daemon=True).start()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self.path.unlink(missing_ok=True)

    @property
    def reach(self) -> list[str]:
        """The words of ``reach`` in hosts.toml."""
        return [*self._command, "run"]

    @property
    def fence(self) -> list[str]:
        """The words of ``fence`` in hosts.toml."""
        return [*self._command, "off"]

    @property
    def replace(self) -> list[str]:
        """The words of ``replace`` in hosts.toml."""
        return [*self._command, "new"]

    @property
    def _command(self) -> list[str]:
        return [sys.executable, "-m", "headway.testkit.bed.remote", str(self.path), "{name}"]

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(near,), daemon=True).start()

    def _answer(self, near: socket.socket) -> None:
        with near, near.makefile("rw") as lines, contextlib.suppress(OSError, ValueError):
            question = json.loads(lines.readline())
            lines.write(json.dumps(self._do(**question)) + "\n")
            lines.flush()

    def _do(self, asks: str, name: str, verb: str, words: list[str], stdin: str) -> dict[str, Any]:
        node = next((one for one in self._bed.nodes if one.name == name), None)
        if node is None:
            return _failed(f"there is no machine {name}")
        if verb == "off":
            if node.is_up:
                node.kill()
            return {"code": 0, "out": "", "err": ""}
        if verb == "new":
            return self._bring(node)
        if {(asks, name), (name, asks)} & self.cut_off:
            return _failed(f"connect to {name}: Connection timed out")
        return _run(node, words, stdin)

    def _bring(self, node: Node) -> dict[str, Any]:
        if self.rebuild is None:
            return _failed("no capacity")
        try:
            self.rebuild(node)
        except (HeadwayError, OSError, ValueError) as error:
            return _failed(f"{node.name} is not rebuilt: {error}")
        return {"code": 0, "out": "", "err": ""}


def _run(node: Node, words: list[str], stdin: str) -> dict[str, Any]:
    try:
        # a login shell joins its words and splits them anew, as sshd has it do
        done = node.run(shlex.split(" ".join(words)), stdin=stdin, check=False, timeout_s=LIMIT_S)
    except (HeadwayError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        return _failed(f"connect to {node.name}: {error}")
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


def _failed(why: str) -> dict[str, Any]:
    return {"code": NOT_REACHED, "out": "", "err": why}


def main() -> int:
    """Ask the bed's owner; passes input, output and exit code on."""
    path, name, verb, *words = sys.argv[1:]
    stdin = sys.stdin.read() if verb == "run" else ""
    question = {"asks": socket.gethostname(), "name": name, "verb": verb}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as far:
        try:
            far.connect(path)
            with far.makefile("rw") as lines:
                lines.write(json.dumps({**question, "words": words, "stdin": stdin}) + "\n")
                lines.flush()
                reply = json.loads(lines.readline())
        except (OSError, ValueError) as error:
            print(f"the bed does not answer: {error}", file=sys.stderr)
            return NOT_REACHED
    print(reply["out"], end="")
    print(reply["err"], end="", file=sys.stderr)
    return int(reply["code"])


if __name__ == "__main__":
    sys.exit(main())
