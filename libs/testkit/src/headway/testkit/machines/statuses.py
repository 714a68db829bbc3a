"""Where runs on machines stand, by one process that stays.

A command for each look would take the processor from the runs that are looked at.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from headway.common.node.testing import child_environment
from headway.testkit.bed.namespace import Namespace
from headway.testkit.bed.node import Node

LIMIT_S = 60.0
MODULE = "headway.testkit.machines.status_process"


class Statuses:
    """What ``headway status --json`` prints on ``node``.

    The answers come from a process in the node's network, which starts with the first question and
    ends with the ``with`` block.

    The runs' folder has the same path on the host and on the node.
    """

    def __init__(self, node: Node, runs: Path) -> None:
        self._node, self._runs = node, runs
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Statuses:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def of(self, name: str) -> dict[str, Any]:
        """Return the status of one run: phase "unknown" where there is none, or no answer."""
        if self._process is None:
            self._process = self._start()
        try:
            answer = _ask(self._process, name)
        except BaseException:  # what it still answers must not be taken for the next answer
            self._end()
            raise
        if answer:
            return dict(json.loads(answer))
        self._end()
        return {"phase": "unknown", "detail": f"no answer within {LIMIT_S:g} s, or an early end"}

    def _start(self) -> subprocess.Popen[str]:
        namespace = Namespace.of(self._node.pid)
        words, pipe = [sys.executable, "-m", MODULE, str(self._runs)], subprocess.PIPE
        env = child_environment()
        try:
            return namespace.call(
                lambda: subprocess.Popen(
                    words, stdin=pipe, stdout=pipe, text=True, env=env, start_new_session=True
                )
            )
        finally:
            namespace.close()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _ask(process: subprocess.Popen[str], name: str) -> str:
    """One line, empty if the process has ended or does not answer."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(name + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
    return process.stdout.readline() if ready else ""
