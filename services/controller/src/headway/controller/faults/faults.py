"""What ``headway inject`` can break, and how a node's executor breaks it.

``inject`` never blocks. A fault that lasts is held by a process of its own, which is not part of
the
run: it undoes the fault when its time is over, when it is ended, and when the process that asked
for it has died. ``python -m headway.controller.faults.faults`` is that process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.process import ProcessId, spawn
from headway.common.node.run_dir import ENV_NODE, ENV_RUN_ID, RunDir
from headway.common.wire.messages.executor import Inject
from headway.controller.faults import cgroups
from headway.controller.faults import fault_effects as effects
from headway.controller.faults.evidence import EVIDENCE, write_evidence
from headway.controller.faults.inside import INSIDE, arm_inside
from headway.controller.faults.network import NETWORK, check_network

ENV_FAULT = "HEADWAY_FAULT"
"""In the environment of a process that holds a fault: the run it breaks."""
HOLD_TICK_S = 0.05


@dataclass(frozen=True)
class Fault:
    """What it does, what it can be done to (of ``TARGETS``), and how long it lasts by default."""

    does: str
    targets: frozenset[str]
    default_s: float = 0.0
    """0: it happens at once and ends nothing by itself."""


TARGETS = {
    "worker": "the process of a rank",
    "service": "a service of a node by its name, executor and init included",
    "node": "a whole node",
    "run": "what all nodes share",
}
_PROCESS = frozenset({"worker", "service"})
_WORKER, _NODE, _RUN = frozenset({"worker"}), frozenset({"node"}), frozenset({"run"})

FAULTS: dict[str, Fault] = {
    "kill": Fault("SIGKILL", _PROCESS),
    "stop": Fault("SIGSTOP", _PROCESS),
    "freeze": Fault("hang in a frozen control group", _PROCESS | _NODE, 12.0),
    "debugger": Fault("held by a debugger", _PROCESS, 3.0),
    "slow": Fault("runs a tenth of the time", _PROCESS, 10.0),
    "slow_disk": Fault("runs a tenth of the time, as with a slow disk", _PROCESS, 10.0),
    "full_disk": Fault("the file system of the run's folder is full", _RUN, 20.0),
    "locked_journal": Fault("another process holds the journal's write lock", _RUN, 15.0),
    "damaged_arena_header": Fault("the snapshot memory is not an arena any more", _WORKER),
    "flipped_snapshot_bit": Fault("one bit of each snapshot in memory is flipped", _WORKER),
    "spawn_failure": Fault("the node can start no process", _NODE, 10.0),
    "silent_node": Fault("init, executor and agent hang, the ranks run", _NODE, 6.0),
    "returning_node": Fault("the whole node hangs until it is lost, then is back", _NODE, 30.0),
    "clock_step": Fault("the run's wall clock goes back 120 s", _RUN),
    "oom": Fault("the kernel ends it for lack of memory", _WORKER, 30.0),
    "hang": Fault("its main thread hangs in a layer", _WORKER, 600.0),
    "hang_before_collective": Fault("the same before it reduces gradients", _WORKER, 600.0),
    "hang_in_data": Fault("the same before it takes its batches", _WORKER, 600.0),
    "gil": Fault("no thread of it runs Python", _WORKER, 10.0),
    "gc": Fault("it collects garbage over and over", _WORKER, 5.0),
    "nan": Fault("one gradient of one step is not a number", _WORKER),
    "flip": Fault("one bit of one gradient of one step is flipped", _WORKER),
    "flip_weight": Fault("one bit of its copy of the weights is flipped", _WORKER),
    "mismatch": Fault("it enters one collective with another size", _WORKER),
    "skip": Fault("it leaves one collective out", _WORKER),
    "bandwidth": Fault("5 Mbit/s of what ranks send to others get through", _NODE, 10.0),
    "loss": Fault("5 % of the packets between its ranks and others are lost", _NODE, 10.0),
    "delay": Fault("what its ranks send to others is 100 ms late", _NODE, 10.0),
    "partition": Fault("nothing passes between its ranks and others", _NODE, 10.0),
    "kernel": Fault("a line of a lost GPU in the kernel log that the agent reads", _NODE),
    "counter": Fault("a port that was down once, in the counters that the agent reads", _NODE),
    "gpu": Fault("a memory error of the GPUs that the agent reads", _NODE),
}

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_SPEAKERS = ("init", "executor", "agent", "driver", "monitor")
_OF_NODE = {
    "spawn_failure": ("executor", "zygote"),
    "silent_node": _SPEAKERS,
    **dict.fromkeys(EVIDENCE, ("agent",)),
    **dict.fromkeys(NETWORK, ("executor",)),
}
"""Which services of a node a fault is about, where that is not all of them."""


@dataclass(frozen=True)
class Places:
    """Where a run lies on this node."""

    run_dir: Path
    shm_dir: Path
    cluster_dir: Path
    fabric_address: str = ""
    """This node's in the ranks' network; empty on the loopback."""


@dataclass(frozen=True)
class Parts:
    """The processes of a run on one node."""

    services: Mapping[str, ProcessId]
    """By name; init and executor are among them, driver and monitor where they run."""
    workers: Mapping[int, ProcessId] = field(default_factory=dict)
    """By rank."""
    standbys: Sequence[ProcessId] = ()


def check(fault: str, target: str, services: Collection[str] | None = None) -> Fault:
    """Return the fault, if it can be done to ``target``.

    The target is ``worker``, ``node``, ``run`` or a service's name.

    Args:
        fault: one of ``FAULTS``.
        target: what is to be broken.
        services: what runs on the node beside init and executor; None when that is not known here.

    Raises:
        InputError: unknown, or not to be done to that; with what there is.
    """
    found = FAULTS.get(fault)
    if found is None:
        raise InputError(f"unknown fault {fault!r}", remedy=f"use one of {', '.join(FAULTS)}")
    kind = target if target in TARGETS else "service"
    if kind not in found.targets:
        raise InputError(
            f"{fault!r} cannot be done to {target!r}",
            remedy="its target can be " + " or ".join(sorted(found.targets)),
        )
    names = {"init", "executor", *(services or ())}
    if kind == "service" and services is not None and target not in names:
        raise InputError(
            f"the node does not run {target!r}",
            remedy=f"use one of {', '.join(sorted({'worker', *names}))}",
        )
    return found


def chosen(fault: str, target: str, rank: int, parts: Parts) -> list[ProcessId]:
    """The processes of this node that the fault is about.

    Raises:
        InputError: unknown fault or target, or the node does not run that.
    """
    check(fault, target)
    if target == "worker":
        found = [parts.workers[rank]] if rank in parts.workers else []
    elif target == "run":
        found = [parts.services["executor"]]
    elif target == "node":
        names = _OF_NODE.get(fault)
        found = [p for name, p in parts.services.items() if names is None or name in names]
        if names is None:
            found += [*parts.workers.values(), *parts.standbys]
    else:
        found = [parts.services[target]] if target in parts.services else []
    if not found:
        raise InputError(
            f"this node does not run {target!r}"
            + (f" of rank {rank}" if target == "worker" else ""),
            remedy=f"it runs {', '.join(sorted(parts.services))} and ranks {sorted(parts.workers)}",
        )
    return found


def carry_out(order: Inject, parts: Parts, places: Places) -> str:
    """What an executor does with the driver's ``Inject``; returns what was done.

    Raises:
        InputError, OSError, HeadwayError: as ``chosen`` and ``inject``.
    """
    processes = chosen(order.fault, order.target, order.rank, parts)
    return inject(order.fault, processes, places, order.duration_s, rank=order.rank)


def inject(
    fault: str,
    processes: Sequence[ProcessId],
    places: Places,
    duration_s: float = 0.0,
    *,
    rank: int = -1,
) -> str:
    """Break something; returns what was done. Called by an executor, whose loop it does not block.

    Args:
        fault: one of ``FAULTS``.
        processes: what ``chosen`` gave.
        places: where the run lies.
        duration_s: how long a fault lasts that ends by itself, 0 for its default.
        rank: whose snapshots are damaged.

    Raises:
        InputError: unknown fault, or it cannot be done here.
        OSError, HeadwayError: it failed.
    """
    if fault not in FAULTS:
        raise InputError(f"unknown fault {fault!r}", remedy=f"use one of {', '.join(FAULTS)}")
    living = [process for process in processes if process.alive()]
    arena = places.shm_dir / f"arena-{rank}.bin"
    if fault in _SIGNALS:
        hit = [process.pid for process in living if process.kill(_SIGNALS[fault])]
        return f"{FAULTS[fault].does} sent to {hit}"
    if fault == "damaged_arena_header":
        return effects.damage_header(arena)
    if fault == "flipped_snapshot_bit":
        return effects.flip_bits(arena)
    if fault in EVIDENCE:
        if not living:
            raise InputError("the node's agent does not run", remedy="see `headway status`")
        return write_evidence(fault, living[0])
    if fault in INSIDE:
        failpoints = places.shm_dir.parent / "failpoints.bin"
        return arm_inside(fault, failpoints, rank, duration_s or FAULTS[fault].default_s)
    if fault == "clock_step":
        if not living:
            raise InputError("no process of the run is left", remedy="see `headway status`")
        return effects.step_clock(effects.clock_file(living[0]))
    seconds = duration_s or FAULTS[fault].default_s
    holder = hold(fault, living, places, seconds)
    return f"{FAULTS[fault].does}, for {seconds:g} s, held by process {holder.pid}"


def hold(
    fault: str, processes: Sequence[ProcessId], places: Places, duration_s: float
) -> ProcessId:
    """Start the process that holds a lasting fault; SIGTERM ends the fault early.

    Raises:
        InputError: it cannot be done here, as far as that is known beforehand.
    """
    if fault == "full_disk":
        effects.check_small(places.run_dir)
    elif fault in NETWORK:
        check_network(fault, places.fabric_address)
    elif fault == "oom":
        cgroups.needed("memory")
    elif fault in ("freeze", "slow", "slow_disk", "silent_node", "returning_node"):
        cgroups.needed("freezer")
    argv = [sys.executable, "-m", __spec__.name, "--fabric", places.fabric_address]
    argv += [fault, str(duration_s), str(places.run_dir)]
    argv += [f"{process.pid}:{process.start_ticks}" for process in processes]
    # Not a part of the run: what ends the run's processes must not leave others frozen.
    own = (ENV_RUN_ID, ENV_NODE, "HEADWAY_ROLE", "LD_PRELOAD")
    env = {name: value for name, value in os.environ.items() if name not in own}
    env[ENV_FAULT] = RunDir(places.run_dir).run_id
    try:
        return spawn(argv, places.run_dir / "logs" / "faults.log", env, cwd=Path("/"))
    except InputError:  # no log on a full disk
        return spawn(argv, Path(os.devnull), env, cwd=Path("/"))


def effect(
    fault: str, processes: Sequence[ProcessId], run: RunDir, fabric_address: str = ""
) -> contextlib.AbstractContextManager[effects.Tick]:
    """The block during which a lasting fault is there."""
    if fault == "full_disk":
        return effects.filled(run.path)
    if fault == "locked_journal":
        return effects.locked(run.database)
    if fault in NETWORK:
        return effects.disturbed(fault, fabric_address)
    by_processes = {
        "slow": effects.slowed,
        "slow_disk": effects.slowed,
        "spawn_failure": effects.unable_to_spawn,
        "debugger": effects.traced,
        "oom": effects.starved,
    }
    return by_processes.get(fault, effects.frozen)(processes)


def main(argv: Sequence[str] | None = None) -> int:
    """Hold one fault until its time is over, its processes have ended, or SIGTERM comes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    held = [name for name, what in FAULTS.items() if what.default_s and name not in INSIDE]
    parser.add_argument("fault", choices=held)
    parser.add_argument("seconds", type=float)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--fabric", default="", metavar="ADDRESS")
    parser.add_argument("processes", nargs="*", metavar="PID:START_TICKS")
    options = parser.parse_args(argv)
    asked = _End()
    signal.signal(signal.SIGTERM, asked)
    cgroups.undo_abandoned()
    pairs = [word.split(":") for word in options.processes]
    processes = [ProcessId(int(pid), int(ticks)) for pid, ticks in pairs]
    run = RunDir(options.run_dir)
    with effect(options.fault, processes, run, options.fabric) as tick:
        end = time.monotonic() + options.seconds
        while time.monotonic() < end and not asked.to_end:
            if processes and not any(process.alive() for process in processes):
                break
            tick()
            time.sleep(HOLD_TICK_S)
        asked.to_end = True
    return 0


class _End:
    """Ends the holder at once, or at its next turn if what it raises is lost.

    It is lost in a destructor, for example. Once the fault is being undone, nothing interrupts
    that.
    """

    to_end = False

    def __call__(self, *_: object) -> None:
        if not self.to_end:
            self.to_end = True
            sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
