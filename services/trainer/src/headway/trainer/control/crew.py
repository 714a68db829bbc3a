"""The workers of one node: who they are, what they last said, and enough warm standbys beside them."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from headway.common.log import get_logger
from headway.common.node.files import replace_json
from headway.common.node.process import DEAD, LastWords, ProcessId
from headway.common.wire.messages.driver import WorkerGone
from headway.common.wire.messages.executor import WorkerBeat

# a fork that has not said hello by then is taken for lost (torch imports in 1-2 s)
FORK_LIMIT_S = 20.0
# a worker beats twice a second; ten beats missed after a restart mean that it hangs
ORPHAN_LIMIT_S = 5.0

log = get_logger("crew")


@dataclass
class Member:
    """One worker process and its newest beat."""

    process: ProcessId
    beat: WorkerBeat
    peer: bytes


class Crew:
    """Knows workers by their beats; asks the zygote for more."""

    def __init__(self, node: int, state_file: Path, zygote_socket: Path, words_dir: Path) -> None:
        self._node, self._file, self._zygote, self._words = (
            node,
            state_file,
            zygote_socket,
            words_dir,
        )
        self.members: dict[str, Member] = {}
        self._pending: dict[str, float] = {}
        self._orphans: dict[str, ProcessId] = {}
        self._next = 0
        self._began_at = time.monotonic()
        self._load()

    # ---- what workers say ---------------------------------------------------------------------
    def hear(self, beat: WorkerBeat, peer: bytes) -> bool:
        """Take a beat; True when something that others should know at once has changed."""
        self._pending.pop(beat.worker, None)
        self._orphans.pop(beat.worker, None)
        old = self.members.get(beat.worker)
        self.members[beat.worker] = Member(ProcessId(beat.pid, beat.start_ticks), beat, peer)
        if old is None:
            self._save()
            return True
        return (old.beat.status, old.beat.generation) != (beat.status, beat.generation)

    def peer(self, worker: str) -> bytes | None:
        """The socket identity of a worker."""
        member = self.members.get(worker)
        return member.peer if member else None

    @property
    def settled(self) -> bool:
        """False after a restart until every worker of the executor before has spoken or is dead.

        Before that the node's beat would look as if they were gone.
        """
        return not self._orphans

    def beats(self) -> tuple[WorkerBeat, ...]:
        """The newest beat of every living worker."""
        return tuple(member.beat for member in self.members.values())

    def processes(self) -> list[ProcessId]:
        """Every worker process known, those of the executor before that have not spoken yet too."""
        return [*(member.process for member in self.members.values()), *self._orphans.values()]

    # ---- life and death -----------------------------------------------------------------------
    def poll(self) -> list[WorkerGone]:
        """Find the dead; end the stopped, since a frozen rank holds up all others."""
        gone = []
        for name, member in list(self.members.items()):
            state = member.process.state()
            if state == "T":
                member.process.kill()
                gone.append(self._bury(name, "stopped"))
            elif state in DEAD:
                gone.append(self._bury(name, self._last_words(name)))
        late = time.monotonic() - self._began_at > ORPHAN_LIMIT_S
        for name, process in list(self._orphans.items()):
            if late or process.state() == "T":
                process.kill()
            if not process.alive():
                del self._orphans[name]
        return gone

    def kill(self, worker: str) -> None:
        """End a worker at once."""
        if worker in self.members:
            self.members[worker].process.kill()

    def rank_worker(self, rank: int) -> str | None:
        """The worker that holds a rank."""
        return next((n for n, m in self.members.items() if m.beat.rank == rank), None)

    def _bury(self, name: str, reason: str) -> WorkerGone:
        member = self.members.pop(name)
        self._save()
        log.warning("worker is gone", worker=name, rank=member.beat.rank, reason=reason)
        return WorkerGone(
            node=self._node,
            worker=name,
            pid=member.process.pid,
            rank=member.beat.rank,
            generation=member.beat.generation,
            reason=reason,
        )

    def _last_words(self, name: str) -> str:
        words = LastWords(self._words / f"words-{name}.bin").read()
        return f"{words.reason} (code {words.code})" if words is not None else "killed"

    # ---- standbys -----------------------------------------------------------------------------
    def refill(self, wanted: int, now: float) -> None:
        """Ask for forks until ``wanted`` workers exist or are on their way."""
        for name, asked_at in list(self._pending.items()):
            if now - asked_at > FORK_LIMIT_S:
                log.warning("a fork was never heard of", worker=name)
                del self._pending[name]
        while len(self.members) + len(self._pending) + len(self._orphans) < wanted:
            name = f"n{self._node}w{self._next}"
            self._next += 1
            self._save()  # first: a successor must not give the same name to another fork
            if not self._ask(name):
                self._next -= 1
                return  # the zygote is still importing torch; the next call asks again
            self._pending[name] = now

    def zygote_died(self) -> None:
        """Forget what was asked of it."""
        self._pending.clear()

    def _ask(self, name: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            try:
                sock.sendto(name.encode(), str(self._zygote))
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                return False
        return True

    # ---- memory over an executor's death ------------------------------------------------------
    def _save(self) -> None:
        processes = {n: [m.process.pid, m.process.start_ticks] for n, m in self.members.items()}
        replace_json(self._file, {"next": self._next, "workers": processes})

    def _load(self) -> None:
        try:
            data = json.loads(self._file.read_text())
        except (FileNotFoundError, ValueError):
            return
        self._next = int(data["next"])
        self._orphans = {
            name: ProcessId(pid, ticks) for name, (pid, ticks) in data["workers"].items()
        }
