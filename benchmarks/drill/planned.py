"""Announced ends: SIGTERM to every process of a run, then a reboot, then the run again.

``python -m benchmarks.drill planned --times 50``. One small run, which makes no checkpoint
by itself, is ended while it trains, is paused, evaluates, makes the first step of a generation, or
recovers, in turn; ``caught`` says whether it still did so when it ended. Its stores must write the
newest step that any rank has committed; its shared memory is compared with that checkpoint, then
removed, as a reboot would; the run must resume there.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.ckpt_store.folder import newest
from headway.ckpt_store.verify import read_shard
from headway.common.errors import HeadwayError
from headway.common.node.arena_reader import ArenaReader
from headway.common.node.janitor import processes_of, role_of
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths, shm_root
from headway.common.wire.messages.driver import Status
from headway.console.run import Run
from headway.testkit.journal import query

from benchmarks.drill import look
from benchmarks.drill.rig import Rig

OVERRIDES = (
    "launch.spares=0",
    "ckpt.durable_every=1000000",
    "train.eval_batches=100",
)
END_LIMIT_S = 90.0
"""systemd sends SIGKILL after so long."""
START_LIMIT_S = STRIKE_LIMIT_S = 300.0
MOST_BEHIND = 2
"""A snapshot is copied while the next step is made, and committed by every rank after it."""
MOST_GAP_S = 0.02
"""Between two signals: who ends a run does not reach all of it at once."""


@dataclass
class End:
    """One end, and how the run came back."""

    kind: str
    number: int
    step: int = -1
    """Completed steps when the first signal was sent."""
    committed: int = -1
    """Newest step that a rank had committed, or that was durable before."""
    resumed: int = -1
    source: str = ""
    ended_s: float = 0.0
    caught: bool = False
    """The run had not left what it was ended in."""
    wrong: list[str] = field(default_factory=list)


def play(rig: Rig, times: int, seed: int) -> list[End]:
    """End the run so often; returns what came of each."""
    rng, ends = random.Random(seed), []
    run = rig.launch("planned", *OVERRIDES)
    for number in range(times):
        phase = PHASES[number % len(PHASES)]
        end = End(phase.name, number)
        try:
            status = look.healthy(run, _newest(run) + 3, limit_s=START_LIMIT_S)
            begun_s = time.monotonic()
            phase.enter(run, status, rng)
            _end(run, end, rng)
            end.caught = phase.was_caught(run, begun_s)
            run = _resume(rig, run, end)
        except (HeadwayError, AssertionError) as error:
            end.wrong.append(f"{type(error).__name__}: {error}"[:300])
        print(f"  {end}", flush=True)
        ends.append(end)
        if end.wrong and not run.live:
            run = rig.launch("planned", *OVERRIDES)
    rig.finish(run)
    return ends


def report(times: int, seed: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Play the ends on a machine of their own; returns them and what is wrong."""
    with Rig() as rig:
        ends = play(rig, times, seed)
    good = sum(not end.wrong for end in ends)
    print(f"{good} of {len(ends)} announced ends resumed at the newest committed step")
    failures = [f"end {end.number} ({end.kind}): {line}" for end in ends for line in end.wrong]
    missed = {end.kind for end in ends} - {end.kind for end in ends if end.caught}
    failures += [f"no end came during {kind}" for kind in sorted(missed)]
    return [asdict(end) for end in ends], failures


# ---- what the run is doing when it is ended ---------------------------------------------------
def _train(_run: Run, _status: Status, rng: random.Random) -> None:
    time.sleep(rng.uniform(0.0, 0.5))


def _pause(run: Run, _status: Status, _rng: random.Random) -> None:
    run.command("pause")
    _reach(run, lambda status: status.paused)


def _evaluate(run: Run, _status: Status, _rng: random.Random) -> None:
    run.command("evaluate")
    steps: list[int] = []

    def is_still(status: Status) -> bool:
        steps.append(status.step)
        time.sleep(0.2)
        return len(steps) > 2 and len(set(steps[-3:])) == 1

    _reach(run, is_still)


def _recover(run: Run, status: Status, rng: random.Random) -> None:
    row = rng.choice(status.ranks)
    look.parts_of(run, status, row.node).workers[row.rank].kill(signal.SIGKILL)
    time.sleep(rng.uniform(0.0, 0.5))


def _first_step(run: Run, status: Status, rng: random.Random) -> None:
    row = rng.choice(status.ranks)
    look.parts_of(run, status, row.node).workers[row.rank].kill(signal.SIGKILL)
    _reach(run, lambda now: now.phase == "joining" or now.generation > status.generation)


def _reach(run: Run, condition: Callable[[Status], bool]) -> None:
    took_s = look.seconds_until(lambda: look.reports(run, condition), STRIKE_LIMIT_S)
    assert took_s < STRIKE_LIMIT_S, "the run did not get there"


def _has_not_evaluated(run: Run, _since_s: float) -> bool:
    newest_one = "(SELECT MAX(sequence) FROM commands WHERE operation = 'evaluate')"
    return not query(run, f"SELECT loss FROM evaluations WHERE sequence = {newest_one}")


def _has_not_stepped(run: Run, since_s: float) -> bool:
    names = [row["name"] for row in look.events_of(run, since_s)]
    return "fence" in names and "stepping" not in names


@dataclass(frozen=True)
class Phase:
    """What a run is brought to do before it is ended, and whether it still did so then."""

    name: str
    enter: Callable[[Run, Status, random.Random], None]
    was_caught: Callable[[Run, float], bool] = lambda _run, _since_s: True
    """By default the run leaves it only by a command."""


PHASES = (
    Phase("training", _train),
    Phase("pause", _pause),
    Phase("evaluation", _evaluate, _has_not_evaluated),
    Phase("first step", _first_step, _has_not_stepped),
    Phase("recovery", _recover, _has_not_stepped),
)


# ---- the end, and the run after it ------------------------------------------------------------
def _end(run: Run, end: End, rng: random.Random) -> None:
    status = look.status_of(run)
    end.step = status.step if status is not None else -1
    before, began = _newest(run), time.monotonic()
    victims = processes_of(run.folder.run_id)
    rng.shuffle(victims)
    for process in victims:
        with contextlib.suppress(ProcessLookupError):
            process.kill(signal.SIGTERM)
        time.sleep(rng.uniform(0.0, MOST_GAP_S))
    look.seconds_until(lambda: not processes_of(run.folder.run_id), END_LIMIT_S)
    end.ended_s = time.monotonic() - began
    if left := processes_of(run.folder.run_id):
        end.wrong.append(f"left: {', '.join(map(_shown, left))}")
    _compare(run, end, before)


def _shown(process: ProcessId) -> str:
    """What a process that should have ended is and waits for."""
    about = [role_of(process) or "no service", f"pid {process.pid}", f"state {process.state()}"]
    with contextlib.suppress(OSError):
        folder = Path(f"/proc/{process.pid}")
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        ignored = re.search(r"SigIgn:\s*(\w+)", (folder / "status").read_text())
        about += [words.strip()[:150], f"ignores {ignored[1] if ignored else '?'}"]
        about.append((folder / "wchan").read_text())
    return " | ".join(about)


def _compare(run: Run, end: End, before: int) -> None:
    """Compare what memory holds with the newest checkpoint, then remove the memory."""
    nodes, world_size = range(run.config.launch.nodes), run.config.parallel.world_size
    paths = [p for n in nodes for p in NodePaths(run.folder.run_id, n).segments("arena")]
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(ArenaReader.open(path, writable=False)) for path in paths]
        end.committed = max([before, *(reader.committed for reader in readers)])
        if len({reader.rank for reader in readers}) != world_size:
            end.wrong.append(f"{len(readers)} of {world_size} ranks have kept their memory")
        if end.committed < end.step - MOST_BEHIND:
            end.wrong.append(f"only step {end.committed} was kept of {end.step}")
        info = newest(run.folder.checkpoints)
        if info is None or info.step != end.committed:
            end.wrong.append(f"the newest checkpoint is of step {info.step if info else None}")
        elif info.step > before:
            for reader in readers:
                in_memory, on_disk = reader.view(info.step), read_shard(info, reader.rank)
                if on_disk[0].tobytes() != in_memory[0].tobytes() or on_disk[1] != in_memory[1]:
                    end.wrong.append(f"rank {reader.rank} of the checkpoint differs from memory")
    shutil.rmtree(shm_root() / run.folder.run_id)


def _resume(rig: Rig, run: Run, end: End) -> Run:
    known = len(look.generations_of(run))
    run = rig.launch(run.name, *OVERRIDES)
    if end.kind == "pause":
        with contextlib.suppress(HeadwayError):
            run.command("resume")
    look.seconds_until(lambda: len(look.generations_of(run)) > known, STRIKE_LIMIT_S)
    first = look.generations_of(run)[known]
    end.resumed, end.source = first["step"], first["source"]
    if end.resumed != end.committed:
        end.wrong.append(f"resumed at step {end.resumed}")
    return run


def _newest(run: Run) -> int:
    info = newest(run.folder.checkpoints)
    return info.step if info is not None else -1
