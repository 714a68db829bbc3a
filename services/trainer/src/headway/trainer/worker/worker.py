"""A worker process: waits as a warm standby, trains a rank, leaves broken generations and rejoins.

Two threads: the main thread computes, the link's thread receives from the executor. They share
``WorkerStatus``, written field by field; an abort reaches the main thread through the fence.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from headway.common import installed
from headway.common.config import load
from headway.common.log import get_logger, identify, setup
from headway.common.node.exit_record import ExitRecord
from headway.common.node.failpoints import add_where, configure
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths, RunDir
from headway.common.node.stack_dump import answer_in
from headway.common.wire.message import Message
from headway.common.wire.messages.executor import (
    LeftGeneration,
    StoreOpened,
    WorkerBeat,
)
from headway.common.wire.messages.worker import Abort, Assign, Quit, Steer, StoreAddress
from headway.trainer.comm.fence import Fence
from headway.trainer.comm.interface import Aborted
from headway.trainer.comm.store import StoreEndpoint
from headway.trainer.config import RunConfig
from headway.trainer.errors import (
    BadCheckpointError,
    BadSnapshotError,
    RefusedError,
    SpikeRollback,
)
from headway.trainer.worker.failures import (
    breaks_device,
    context_is_broken,
    is_out_of_memory,
    reason_of,
)
from headway.trainer.worker.link import Link, WorkerStatus
from headway.trainer.worker.memory import held_by_others, short_of, too_small
from headway.trainer.worker.rank import Rank
from headway.trainer.worker.title import set_title
from headway.trainer.worker.warm import WarmUp
from msgspec import structs

log = get_logger("worker")


class Worker:
    """``run`` returns the exit code once the executor says ``Quit``."""

    def __init__(self, run_dir: Path, node: int, name: str) -> None:
        self.run_dir, self.node, self.name = RunDir(run_dir), node, name
        self.config = load(RunConfig, files=[self.run_dir.config])
        self.paths = NodePaths(self.run_dir.run_id, node)
        configure(self.paths.failpoints, node=node)
        self.words = ExitRecord(self.paths.segment("words", name))
        self.words.prepare()
        answer_in(self.paths.shm_dir)
        self.view = WorkerStatus()
        self.commands: list[Steer] = []
        self.fence = Fence()
        self._me = ProcessId.current()
        self._source = installed.source()  # of its zygote, if that forked it
        self._jobs: queue.SimpleQueue[Assign | None] = queue.SimpleQueue()
        self._stores: queue.SimpleQueue[StoreAddress] = queue.SimpleQueue()
        self._rank: Rank | None = None
        self._assigned = -1
        self._warm_up = WarmUp(self.config)
        self.link = Link(
            self.paths.endpoint("executor"), name, self.beat, self._on_message, self._silence
        )

    # ---- the link's thread --------------------------------------------------------------------
    def beat(self) -> WorkerBeat:
        """Return what this worker is and does now.

        It is sent from a thread that no collective holds up, which the flight ring shows, too.
        """
        if self._rank is not None:
            self._rank.count_life()
        return WorkerBeat(
            worker=self.name,
            pid=self._me.pid,
            start_ticks=self._me.start_ticks,
            command=len(self.commands),
            source=self._source,
            **vars(self.view),
        )

    def _on_message(self, message: Message) -> None:
        match message:
            case Assign():
                if message.generation > self._assigned:
                    self._assigned = message.generation
                    self._take_commands(message.commands)
                    self._abort(message.generation - 1)
                    self._jobs.put(message)
            case StoreAddress():
                self._stores.put(message)
            case Abort():
                self._abort(message.generation)
            case Steer():
                self._take_commands((message,))
            case Quit():
                log.info("asked to quit")
                self._quit("asked to quit")
            case _:
                log.warning("unexpected message", message=type(message).__name__)

    def _take_commands(self, commands: tuple[Steer, ...]) -> None:
        """Append the next commands; duplicates and commands after a gap are ignored."""
        for command in commands:
            if command.sequence == len(self.commands) + 1:
                self.commands.append(command)

    def _abort(self, generation: int) -> None:
        if self.view.status == "finished" and self.view.generation <= generation:
            # the main thread is outside already
            self._leave(self._left(self.view.generation, self.view.rank)(reason="aborted"))
        if not self.fence.is_fenced(generation):
            threading.Thread(
                target=self.fence.abort, args=(generation,), name="abort", daemon=True
            ).start()

    def _silence(self, silent_s: float) -> None:
        # A standby holds nothing that an executor could come back for. It may be forked at the very
        # moment at which all other processes of its node are asked to end.
        limits, has_state = self.config.recovery, self._rank is not None
        if silent_s > (limits.orphan_limit_s if has_state else limits.node_lost_s):
            self._quit(f"no executor for {silent_s:.0f} s")

    def _quit(self, reason: str, code: int = 0) -> None:
        """End the process from any thread; the newest committed snapshot stays in the arena.

        Immediately, because the destructors of a broken CUDA context may never return.
        """
        self.words.write(code, reason)
        os._exit(code)

    # ---- the main thread ----------------------------------------------------------------------
    def run(self) -> int:
        """Serve assignments forever."""
        self._show_as("standby")
        self._warm_up.start()
        while (assign := self._next()) is not None:
            self._serve(assign)
        return 0

    def _next(self) -> Assign | None:
        """Wait for the driver's next assignment, which the flight ring shows as a wait."""
        with self._rank.waiting if self._rank is not None else nullcontext():
            return self._jobs.get()

    def _serve(self, assign: Assign) -> None:
        self.view = WorkerStatus(
            "joining", assign.generation, assign.rank, assign.restore.step, 0, False
        )
        self._show_as(f"rank {assign.rank} ({self.config.parallel.grid.place(assign.rank)})")
        self._warm_up.assigned(assign.rank)
        add_where(rank=assign.rank)
        identify(rank=assign.rank)
        self.link.beat_now()
        left = self._left(assign.generation, assign.rank)
        gone, broken = left(reason="aborted"), True
        try:
            if self._rank is not None and self._rank.rank != assign.rank:
                self._rank.close()
                self._rank = None
            if self._rank is None:
                self._rank = Rank(self, assign.rank)
            self._rank.serve(assign, self._lookup)
            # peers may still be in their last collective: leave its connections alone
            broken = False
            self.view.status = "finished"
            self.link.beat_now()
            return
        except Aborted:
            pass
        except RefusedError as error:
            gone = left(reason="error", detail=str(error), is_fatal=True)
            log.error("this rank cannot continue", error=error.message, remedy=error.remedy)
        except SpikeRollback as back:
            broken = False  # all ranks are here; see above
            gone = left(reason="spike", detail=back.message, spike_end=back.end)
        except Exception as error:
            gone = left(
                reason=reason_of(error),
                detail=_one_line(error),
                bad_checkpoint=isinstance(error, BadCheckpointError),
                bad_part=error.part if isinstance(error, BadCheckpointError) else -1,
                bad_snapshot=isinstance(error, BadSnapshotError),
            )
            if gone.reason != "peer":
                log.exception("the step failed")
            if is_out_of_memory(error):
                gone = self._out_of_memory(gone, error)
            if breaks_device(error):
                # not reported to the executor, which would assign this process again before it ends
                self._quit(gone.detail, code=1)
            traceback.clear_frames(error.__traceback__)
        finally:
            self.fence.leave(broken=broken)
        if context_is_broken():
            self._quit(f"the GPU's context is broken: {gone.detail or gone.reason}", code=1)
        self._leave(gone)

    def _out_of_memory(self, gone: LeftGeneration, error: Exception) -> LeftGeneration:
        if others := held_by_others():
            return structs.replace(gone, detail=short_of(gone.rank, error, others))  # type: ignore[type-var]
        # every further attempt would need as much
        why = str(too_small(self.config, gone.rank, error))
        return structs.replace(gone, detail=why, is_fatal=True)  # type: ignore[type-var]

    def _show_as(self, what: str) -> None:
        set_title(self.run_dir.name, f"{what}, node {self.node}")

    def _left(self, generation: int, rank: int) -> Callable[..., LeftGeneration]:
        return partial(LeftGeneration, worker=self.name, generation=generation, rank=rank)

    def _leave(self, gone: LeftGeneration) -> None:
        """Report to the executor that this worker has left the generation."""
        log.info("left", generation=gone.generation, reason=gone.reason, detail=gone.detail)
        self.view.status = "left"
        self.link.send(structs.replace(gone, detail=gone.detail[:900]))  # type: ignore[type-var]
        self.link.beat_now()

    def announce(self, generation: int, endpoint: StoreEndpoint) -> None:
        """Rank 0, on its build thread: report where the generation's store listens."""
        self.link.send(
            StoreOpened(
                generation=generation,
                host=endpoint.host,
                port=endpoint.port,
                secret=endpoint.secret,
            )
        )

    def _lookup(self, generation: int) -> StoreEndpoint:
        """Other ranks, on their build thread: wait for the store's address."""
        deadline = time.monotonic() + self.config.limits.join_timeout_s
        while time.monotonic() < deadline and not self.fence.is_fenced(generation):
            try:
                found = self._stores.get(timeout=0.2)
            except queue.Empty:
                continue
            if found.generation == generation:
                return StoreEndpoint(found.host, found.port, found.secret)
            if found.generation > generation:
                self._stores.put(found)
                break
        raise Aborted


def _one_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} [{where}]"


def main(run_dir: Path, node: int, name: str) -> int:
    """Run a worker of this node until it is asked to quit; entry of a forked or spawned process."""
    setup("worker", node=node)
    worker = Worker(run_dir, node, name)
    try:
        return worker.run()
    except BaseException as error:
        worker.words.write(1, _one_line(error), traceback.format_exc(limit=-6))
        raise
