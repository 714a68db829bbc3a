"""The one executor that an init keeps: started, or found and adopted; watched, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.claim import ClaimedError, claim, holder_of
from headway.common.node.freezer import is_frozen
from headway.common.node.process import DEAD, GONE, ProcessId, spawn
from headway.launch.init.beats import ENV_BEAT_FD, ENV_RESTARTED_FOR, BeatReader, Heard
from headway.launch.init.core import FROZEN

DYING_S = 1.0
"""An executor with a pending SIGKILL that has not ended after this is stuck in the kernel."""
_TAIL_BYTES = 4096
_MAX_LINE = 500


@dataclass(frozen=True)
class Place:
    """Which node of which cluster."""

    cluster: Path
    cluster_id: str
    node: int

    @property
    def has_joined(self) -> bool:
        """Whether it is a node of a run that machines join."""
        return (self.cluster.parent / "joined.json").exists()

    @property
    def folders(self) -> tuple[Path, ...]:
        """The cluster's folder, and the one around it on a machine that has joined a run."""
        return (self.cluster.parent, self.cluster) if self.has_joined else (self.cluster,)

    @property
    def claim(self) -> Path:
        """The file in which the node's init is named."""
        return self.cluster / "nodes" / f"{self.node}.init"

    @property
    def executor_claim(self) -> Path:
        """The file in which the node's executor is named."""
        return self.cluster / "nodes" / f"{self.node}.lock"

    @property
    def executor_log(self) -> Path:
        """Where the executor's output goes."""
        return self.cluster / "logs" / f"n{self.node}-executor.log"

    def environment(self, role: str, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` and what a process of this node is found by."""
        found = {"HEADWAY_RUN_ID": self.cluster_id, "HEADWAY_NODE": str(self.node)}
        return {**base, **found, "HEADWAY_ROLE": role}


class Executor:
    """A living executor; ``close`` forgets it without ending it."""

    def __init__(
        self, process: ProcessId, beats: BeatReader | None, log: Path, offset: int
    ) -> None:
        self.process, self.beats = process, beats
        self.pidfd = process.pidfd()
        self.code: int | None = None
        """Its exit code, negative for a signal; None while unknown."""
        self._log, self._offset = log, offset
        self._doomed_at: float | None = None

    @classmethod
    def find(cls, place: Place) -> Executor | None:
        """The one that runs already, started by an earlier init or by hand; None if none does."""
        process = holder_of(place.executor_claim)
        if process is None or process.is_terminating():
            return None
        try:
            return cls(process, BeatReader.reopen(process), place.executor_log, 0)
        except ProcessLookupError:  # it has ended since
            return None

    @classmethod
    def start(cls, place: Place, restarted_for: str = "") -> Executor:
        """Start one, in a session of its own; ``restarted_for``: how the one before it ended.

        Raises:
            HeadwayError, OSError: it cannot be started.
        """
        log = place.executor_log
        offset = log.stat().st_size if log.exists() else 0
        beats, fd = BeatReader.create()
        words = ["executor", "--cluster", str(place.cluster), "--node", str(place.node)]
        sent = {ENV_BEAT_FD: str(fd), ENV_RESTARTED_FOR: restarted_for}
        try:
            process = spawn(
                [sys.executable, "-m", "headway.controller", *words],
                log_path=log,
                env={**place.environment("executor", os.environ), **sent},
                keep_fds=[fd],
            )
            # Claim on its behalf, so that an init that takes over a moment later finds it.
            with contextlib.suppress(ClaimedError):  # then the executor notices and exits
                claim(place.executor_claim, process)
            return cls(process, beats, log, offset)
        except BaseException:
            beats.close()
            raise
        finally:
            os.close(fd)

    def state(self) -> str:
        """Its state letter, ``FROZEN``, or ``GONE`` if it will never run again.

        One that is about to end still has its state, because its exit code is worth the wait.
        """
        state = self.process.state()
        if state in DEAD:
            return GONE
        is_held = state != "T" and is_frozen(self.process.pid)
        if not self.process.is_terminating():
            self._doomed_at = None
        elif self._doomed_at is None:
            self._doomed_at = time.monotonic()
        if self._doomed_at is not None:
            return GONE if is_held or time.monotonic() - self._doomed_at > DYING_S else state
        return FROZEN if is_held else state

    def listen(self) -> Heard:
        """What it has sent since the last time; nothing if it has no pipe."""
        heard = self.beats.read() if self.beats is not None else Heard(False, False)
        if heard.has_said_end and self.code is None:
            self.code = 0
        return heard

    def send(self, signum: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        self.process.kill(signum)

    def last_line(self) -> str:
        """The last line of its output, empty if it wrote none."""
        try:
            with self._log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = self._offset if self._offset <= size else 0  # it was rotated
                file.seek(max(begin, size - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1][:_MAX_LINE] if lines else ""

    def close(self) -> None:
        """Forget it."""
        os.close(self.pidfd)
        if self.beats is not None:
            self.beats.close()


def place_of(cluster: Path, node: int) -> Place:
    """The place, as the cluster's folder describes it.

    Raises:
        InputError: there is no such cluster or node.
    """
    try:
        facts = json.loads((cluster / "cluster.json").read_text())
        found = Place(cluster.resolve(), str(facts["id"]), node)
        nodes = int(facts["nodes"])
    except FileNotFoundError:
        raise InputError(f"{cluster} holds no cluster", remedy="name a cluster's folder") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{cluster / 'cluster.json'} cannot be read: {error}", remedy="repair this file"
        ) from error
    if not 0 <= node < nodes:
        raise InputError(
            f"node {node} is outside the cluster's {nodes} nodes", remedy=f"use 0 to {nodes - 1}"
        )
    return found
