"""The machines of a Slurm allocation, and of additional one-machine jobs that replace lost ones.

Node K starts on the K-th machine of the allocation. If that machine leaves the allocation, by
itself or since the run has taken it out, an additional job gets another one for this node. Slurm is
queried for the machine of each node, so that every new driver finds it.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.log import get_logger
from headway.common.polling import wait_until
from headway.launch.engine import NodeLost, Replaces
from headway.launch.engines.remote import hooks, reach
from headway.launch.engines.remote.reach import OnOrder, UnreachableError
from headway.launch.engines.slurm import commands, private, step
from headway.launch.engines.slurm.allocation import job_name, submit
from headway.launch.engines.slurm.config import SlurmRun
from headway.launch.engines.slurm.taken_out import TakenOut, shrink
from headway.launch.join.answers import NO_INIT

START_LIMIT_S = 90.0
RESTART_LIMIT_S = (4.0, 60.0)
"""For a node that runs already: the first, and the longest after tries that were too short. Slurm
itself waits 12 s for a machine that has no power."""
DRAIN_LIMIT_S = 30.0
LOOK_S = 1.0
"""How long Slurm's answers are reused, since many nodes start at the same time."""
LEAVE_S = 4.0
"""How long nodes may take to leave their machines after the end of the run."""
MAX_SWEEPS = 32
"""Machines for which jobs are queued at the end of a run; the others wait for their next node."""
SWEEP_MIN, SWEEP_WAIT_MIN = 1, 10
"""Minutes: time limit of a job that removes what a node has left, and how long it may be queued."""
_LIVING = ("RUNNING", "PENDING", "CONFIGURING")

log = get_logger("slurm")


@dataclass(frozen=True)
class Place:
    """Where a node is, or can be."""

    job: str
    host: str
    step: str = ""
    """Number of the step that keeps it; empty: there is none."""


class SlurmMachines:
    """Implements ``Machines``."""

    def __init__(self, run_id: str, control: str, config: SlurmRun) -> None:
        self._run_id, self._control, self._config = run_id, control, config
        self.scratch = config.scratch
        self.replaces: Replaces = "condemned"
        folder = Path(control).parent / "machines"
        self._marks, self._taken_out = folder / config.job, TakenOut(folder / f"{config.job}-out")
        self._out: frozenset[str] = frozenset()
        self._drained: set[str] = set()
        """Machines for which this process has run the drain command."""
        self._lock = threading.Lock()
        self._leaves = threading.Lock()
        """Machines leave their job one at a time: Slurm is given the names of all that stay."""
        self._jobs: list[commands.Job] = []
        self._steps: dict[str, dict[str, commands.Step]] = {}
        self._hosts: dict[str, tuple[str, ...]] = {}
        self._looked_s = float("-inf")
        self._restart_limits_s: dict[int, float] = {}
        """Node -> limit of its next restart in seconds, where the one before was too short."""

    # ---- which machine ------------------------------------------------------------------------
    def name_of(self, node: int) -> str:
        """The machine that the node began on. Raises NodeLost if it has none."""
        if not 0 <= node < len(self._config.hosts):
            raise NodeLost(
                f"the allocation has {len(self._config.hosts)} machines, none for node {node}",
                remedy="use fewer nodes and spares",
            )
        return self._config.hosts[node]

    def place(self, node: int) -> Place | None:
        """Where the node is now; None while it has no machine. Raises HeadwayError."""
        with self._lock:
            if time.monotonic() - self._looked_s > LOOK_S:
                self._look()
            return self._known_place(node)

    def _known_place(self, node: int, *, is_used: bool = True) -> Place | None:
        """By the last look; with ``is_used`` not on a machine that was taken out and stays."""
        found = [job for job in self._jobs if job.state == "RUNNING"]
        for job in sorted(found, key=lambda job: job.name != self._job_name(node)):
            hosts = self._hosts[job.id]
            host = hosts[0] if job.name == self._job_name(node) else self.name_of(node)
            is_first = job.id == self._config.job and not (is_used and host in self._out)
            if (is_first or job.name == self._job_name(node)) and host in hosts:
                kept = self._steps[job.id].get(f"n{node}")
                return Place(job.id, host, kept.id if kept is not None else "")
        return None

    def _look(self) -> None:
        names = [self._job_name(node) for node in range(len(self._config.hosts))]
        found = commands.jobs([job_name(self._run_id), *names])
        # another allocation of this name is that of the same run, stopped and resumed
        jobs = [job for job in found if job.name in names or job.id == self._config.job]
        running = [job for job in jobs if job.state == "RUNNING"]
        steps = {job.id: commands.steps(job.id) for job in running}
        hosts = {job.id: commands.hosts_of(job.nodes) for job in running}
        # together, since Slurm may stop answering between two of the questions
        self._jobs, self._steps, self._hosts = jobs, steps, hosts
        self._out = self._taken_out.hosts()
        self._looked_s = time.monotonic()

    def _forget(self) -> None:
        with self._lock:
            self._looked_s = float("-inf")

    def _job_name(self, node: int) -> str:
        """Return the name of the further job for a node."""
        return f"{job_name(self._run_id)}-{self._config.job}-n{node}"

    # ---- Machines -----------------------------------------------------------------------------
    def start(self, node: int, ticket: str, *, kill_hung: bool) -> None:
        """See ``Machines``. A step keeps the node; without a machine a job for one is queued."""
        place = self.place(node)
        if place is None:
            raise self._waiting(node)
        if place.step and not kill_hung:
            return
        with private.ticket_file(Path(self._control), ticket) as given:
            if not place.step or not self._restart(place, node, given):
                self._forget()
                self._begin(place, node, given)

    def _begin(self, place: Place, node: int, given: Sequence[str]) -> None:
        """Start the step that keeps the node."""
        at_end = "stop" if place.job == self._config.job else "drain"
        notice = ["--notice", str(self._config.notice_s)]
        words = [self._config.python, *reach.MODULE, "init", *given, "--at-end", at_end, *notice]
        with contextlib.suppress(OSError):
            self._marks.mkdir(parents=True, exist_ok=True)
            (self._marks / place.host).touch()
            words += ["--mark", str(self._marks / place.host)]
        started = [*step.on(place.job, place.host, f"n{node}"), "--no-kill", *words]
        step.start(started, name=place.host, limit_s=START_LIMIT_S)

    def _restart(self, place: Place, node: int, given: Sequence[str]) -> bool:
        """Whether a step keeps the node: Slurm shows it for a while after a reboot, too.

        Each try may take longer than the one before: an srun and a start of Python may be slow.
        """
        first_s, longest_s = RESTART_LIMIT_S
        limit_s = self._restart_limits_s.get(node, first_s)
        self._restart_limits_s[node] = min(2 * limit_s, longest_s)
        found = self._srun(place, node, ["restart", *given], limit_s)
        self._restart_limits_s.pop(node, None)  # it was long enough
        if found.returncode == NO_INIT:
            return False
        self._check(place, found)
        return True

    def _waiting(self, node: int) -> OnOrder:
        """Why a node without a machine has none; queues a job for one."""
        name = self._job_name(node)
        waiting = [job for job in self._jobs if job.name == name and job.state in _LIVING]
        if not waiting:
            config = self._taken_out.avoided(self._config)
            number = submit(config, name, 1, self._control, "--further")
            self._forget()
            return OnOrder(f"node {node} is waiting for a machine: job {number} is queued")
        [job, *_] = waiting
        return OnOrder(f"node {node} is waiting for a machine: job {job.id}, {job.reason}")

    def call(self, node: int, verb: str, ticket: str, *, limit_s: float) -> str:
        """See ``Machines``."""
        place = self.place(node)
        if place is None:
            raise UnreachableError(
                f"Slurm has no machine for node {node}", remedy="see `squeue` and `sinfo`"
            )
        if verb not in private.ANSWERS:
            found = self._srun(place, node, [verb], limit_s, stdin=ticket)
            self._check(place, found)
            return found.stdout
        with private.new_file(Path(self._control), private.ANSWER) as answer:
            words = [verb, "--answer", str(answer)]
            self._check(place, self._srun(place, node, words, limit_s, stdin=ticket))
            return private.read(answer)

    def _srun(
        self, place: Place, node: int, words: Sequence[str], limit_s: float, *, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Beside the step that keeps the node."""
        asked = [self._config.python, *reach.MODULE, *words]
        started = [*step.on(place.job, place.host, f"n{node}-{words[0]}"), *asked]
        env = commands.environment("srun")
        return reach.run(started, name=place.host, stdin=stdin, limit_s=limit_s, env=env)

    def _check(self, place: Place, found: subprocess.CompletedProcess[str]) -> None:
        if found.returncode:
            raise step.refusal(place.host, found.returncode, found.stderr)
        if not found.stdout.strip():
            raise UnreachableError(f"{place.host} died during the call", remedy="see `sinfo -R`")

    def cut_off(self, node: int, *, limit_s: float) -> bool:
        """See ``Machines``. Only the fence command can confirm it; Slurm does not know.

        The step is cancelled in any case, so that Slurm ends it once it reaches the machine again.
        A machine that no longer belongs to the run is left alone: another job may be using it.
        """
        place = self._place_at_last(node)
        if place is None:
            return False
        if place.step:
            with contextlib.suppress(HeadwayError):
                commands.cancel(place.step, with_kill=True)
        return hooks.cut_off(self._config.fence, place.host, limit_s=limit_s)

    def _place_at_last(self, node: int) -> Place | None:
        """Its place now, or the last known one while the controller does not respond."""
        try:
            return self.place(node)
        except HeadwayError:
            with self._lock:
                return self._known_place(node)

    def report_bad(self, node: int, reason: str, *, limit_s: float) -> None:
        """See ``Machines``."""
        if (place := self._place_at_last(node)) is not None:
            self._drain(place.host, reason, limit_s)

    def _drain(self, host: str, reason: str, limit_s: float) -> None:
        if host not in self._drained:
            line = f"{self._config.drain_prefix} {reason}".strip()
            hooks.drain(self._config.drain, host, line, limit_s=limit_s)
            self._drained.add(host)

    def replace(self, node: int, reason: str) -> str:
        """See ``Machines``: the machine is drained and leaves its job; ``start`` queues another.

        It is drained first, or Slurm could give it to a job in between. Where Slurm does not let it
        go, it stays allocated, and what is returned says so.
        """
        with self._lock:
            self._look()
            place = self._known_place(node, is_used=False)
        if place is None:
            return ""  # it has left
        notes, is_drained = list[str](), bool(self._config.drain)
        try:
            self._drain(place.host, reason, DRAIN_LIMIT_S)
        except HeadwayError as error:
            is_drained = False
            notes.append(f"{place.host} is not drained: {error.message}")
        with self._leaves:  # another one may have left meanwhile
            with self._lock:
                self._look()
            try:
                self._leave(place)
            except commands.RefusedError as error:
                notes.append(f"{place.host} stays allocated: {error.message}")
        self._taken_out.add(place.host, is_drained=is_drained)
        self._forget()
        return "; ".join(notes)

    def _leave(self, place: Place) -> None:
        if place.host not in self._hosts.get(place.job, ()):
            return
        if place.job == self._config.job:
            shrink(place.job, place.host, self._hosts[place.job])
        else:
            commands.cancel(place.job)

    def sweep(self) -> None:
        """See ``Machines``. Each of these machines gets a job of a few seconds."""
        wait_until(lambda: not self._marked(), LEAVE_S, every_s=0.2)
        for host in self._marked()[:MAX_SWEEPS]:
            try:
                self._sweep(host)
            except HeadwayError as error:  # it may be another reason than that of the next one
                log.warning("a machine is not swept", host=host, error=str(error))

    def _marked(self) -> list[str]:
        """Machines on which a node has begun, and which none has left since the run is over."""
        with contextlib.suppress(OSError):
            return sorted(path.name for path in self._marks.iterdir())
        return []

    def _sweep(self, host: str) -> None:
        """Queue a job for it, which Slurm removes if the machine does not become free in time."""
        limits = [f"--time={SWEEP_MIN}", f"--deadline=now+{SWEEP_WAIT_MIN + SWEEP_MIN}minutes"]
        shared = str(Path(self._control).parent.parent)
        script = [self._config.python, "-m", "headway.launch.machine.sweep", self.scratch, shared]
        options = [*self._config.options, f"--nodelist={host}", *limits]
        name = f"{job_name(self._run_id)}-sweep"
        commands.submit(name, 1, options, [shlex.quote(word) for word in script])

    def release(self) -> None:
        """End every job of the run, queued ones too."""
        private.remove_left(Path(self._control))
        self._forget()
        with self._lock:
            self._look()
        for job in self._jobs:
            commands.cancel(job.id)
