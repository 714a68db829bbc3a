"""A run without training, for tests of programs that watch runs: folder, journal, a live driver.

``FakeRun`` keeps the real journal, the real messages over a real socket and real flight rings; only
the training is made up. Its driver lives in a thread of this process. ``events_of`` makes flight
records by hand.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from headway.common.config import to_toml
from headway.common.errors import InputError
from headway.common.node.flight import FlightWriter
from headway.common.node.flight_record import RECORD, WAITING
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.plan.schedule.actions import Kind
from headway.common.wire.messages.driver import Accepted, Command, GetStatus, RankStatus, Status
from headway.common.wire.messages.executor import Evaluation, Sample, StepMetrics
from headway.common.wire.messages.worker import Steer
from headway.common.wire.server import Handler, Server
from headway.console.run import Run
from headway.controller.journal.journal import Journal
from headway.launch.cluster import ClusterFolder
from headway.launch.lease.base import Holder
from headway.launch.lease.file import FileLease
from headway.trainer.config import LaunchConfig, ModelConfig, ParallelConfig, RunConfig, TrainConfig

if TYPE_CHECKING:
    import polars as pl

TOKENS = 1000
STEP_S = 0.01
SMALL = RunConfig(
    model=ModelConfig(layers=2, hidden=32, heads=2, vocab_size=512, seq_len=32),
    parallel=ParallelConfig(dp=2),
    launch=LaunchConfig(nodes=1, ranks_per_node=2),
    train=TrainConfig(steps=40, global_batch_size=4, dtype="fp32", device="cpu", compile=False),
)

Row = tuple[int, int, float, float]
"""Kind (negative for a wait), step, start and end in ms: one flight record made by hand."""


def events_of(rank: int, *rows: Row, generation: int = 0, **fields: int) -> pl.DataFrame:
    """Flight records of one rank in this order, as ``analysis.load_events`` returns them.

    ``fields`` are the same in all of them: chunk, micro_batch, peer, nbytes.
    """
    from headway.console.analysis.events import frame

    made = np.zeros(len(rows), RECORD)
    made["micro_batch"], made["generation"] = -1, generation
    for number, (kind, step, start_ms, end_ms) in enumerate(rows):
        record = made[number : number + 1]
        record["kind"], record["flags"] = abs(kind), WAITING if kind < 0 else 0
        record["step"], record["sequence"] = step, number
        record["start_ns"], record["end_ns"] = round(start_ms * 1e6), round(end_ms * 1e6)
        for name, value in fields.items():
            record[name] = value
    return frame(0, rank, made).drop("launched_ns")


def touch_corpus(prefix: Path) -> None:
    """Make an empty Megatron pair, as the corpus of a run that trains nothing."""
    for ending in (".bin", ".idx"):
        prefix.with_name(prefix.name + ending).touch()


class FakeRun:
    """``FakeRun(runs_dir)`` is live until ``finish`` or ``close``; only ``advance`` makes steps.

    Set HEADWAY_SHM_ROOT first: it is where the flight rings are kept.
    """

    def __init__(self, runs_dir: Path, name: str = "fake", config: RunConfig = SMALL) -> None:
        self.config = config
        self.folder = RunDir.create(runs_dir / name, run_id=new_run_id())
        self.folder.config.write_text(to_toml(config))
        self.cluster = ClusterFolder.create(
            self.folder.path / "cluster", nodes=1, cluster_id=self.folder.run_id
        )
        self.step, self.generation, self.paused, self.outcome = 0, 0, False, ""
        self.commands: list[Command] = []
        self.waiting = ""
        self.troubles: dict[int, str] = {}
        paths = NodePaths(self.folder.run_id, 0)
        paths.shm_dir.mkdir(parents=True)
        self._flights = [
            FlightWriter.create(paths.segment("flight", rank), rank, 4096)
            for rank in range(config.parallel.world_size)
        ]
        me = ProcessId.current()
        self.cluster.announce(0, "tcp://127.0.0.1:1", me)
        self.cluster.write(
            "nodes/0.run", {"run_dir": str(self.folder.path), "run_id": self.folder.run_id}
        )
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ended, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._drive, name="fake-driver", daemon=True)
        self._thread.start()
        self._ready.wait(10.0)

    @property
    def run(self) -> Run:
        """The run as the console sees it."""
        return Run(self.folder.path)

    # ---- what a test makes happen -------------------------------------------------------------
    def advance(self, steps: int = 1) -> None:
        """Complete some steps on all ranks."""
        self._do(lambda: self._advance(steps))

    def skip(self, loss: float = math.nan) -> None:
        """Complete a step that is skipped because its loss is not finite."""
        self._do(lambda: self._step(loss))

    def evaluate(self, loss: float) -> None:
        """Report a validation loss after the steps so far."""
        said = Evaluation(generation=self.generation, step=self.step, loss=loss, tokens=TOKENS)
        self._do(lambda: self._journal.store([said]))

    def sample(self, tokens: tuple[int, ...]) -> None:
        """Report the text sample of a run's end."""
        said = Sample(generation=self.generation, tokens=tokens, num_prompt_tokens=1)
        self._do(lambda: self._journal.store([said]))

    def recover(self, reason: str = "rank 1 is lost: killed", back_to: int | None = None) -> None:
        """Leave the generation and resume from step ``back_to`` in the next."""
        self._do(lambda: self._recover(reason, self.step if back_to is None else back_to))

    def verdict(self, kind: str, *, is_open: bool, **more: Any) -> None:
        """Journal a verdict of the monitor about rank 1, or that it is withdrawn."""
        fields = {"id": kind, "kind": kind, "node": 0, "rank": 1, "remedy": "wait", **more}
        self.note("verdict", is_open=is_open, **fields)

    def note(self, event: str, **fields: Any) -> None:
        """Journal an event."""
        self._do(lambda: self._log(event, **fields))

    def finish(self, outcome: str = "finished") -> None:
        """End the run: outcome in the journal, executors and driver gone."""
        self._do(lambda: self._finish(outcome))
        self.close()

    def close(self) -> None:
        """End without an outcome, as in a power cut."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
        for flight in self._flights:
            flight.close()
        self._flights = []
        self.cluster.remove("nodes/0.run")
        (self.folder.path / "driver.json").unlink(missing_ok=True)

    # ---- the driver's thread ------------------------------------------------------------------
    def _do(self, work: Callable[[], object]) -> None:
        done = threading.Event()

        def step() -> None:
            try:
                work()
            finally:
                done.set()

        self._work.put(step)
        if not done.wait(30.0):
            raise RuntimeError("the fake driver does not answer")

    def _drive(self) -> None:
        self._journal = Journal(self.folder.database)
        keys = self.cluster.key_of("driver")
        handlers: Mapping[type[Any], Handler] = {GetStatus: self._status, Command: self._command}
        allowed = self.cluster.public_of("console")
        server = Server("tcp://127.0.0.1:0", handlers, keys=keys, allowed=allowed)
        me, lease = ProcessId.current(), FileLease(self.folder.path)
        epoch = lease.claim(lease.look().claimed) or 1
        lease.publish(
            Holder(epoch, 0, me.pid, me.start_ticks, server.endpoint, keys.public.decode())
        )
        self._log("driver_started", epoch=1, node=0)
        self._log("generation", generation=0, source="init", step=0)
        self._log("stepping", generation=0, step=1)
        self._ready.set()
        while not self._ended.is_set():
            if server.socket.poll(5):
                server.handle_ready()
            while not self._work.empty():
                self._work.get()()
        server.close()
        self._journal.close()

    def _log(self, event: str, **fields: object) -> None:
        self._journal.event(event, fields, time.monotonic())

    def _advance(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self, loss: float | None = None) -> None:
        for flight in self._flights:
            with flight.record(Kind.STEP, step=self.step):
                for micro_batch in range(2):
                    with flight.record(Kind.FORWARD, step=self.step, micro_batch=micro_batch):
                        pass
                    with flight.record(Kind.BACKWARD, step=self.step, micro_batch=micro_batch):
                        pass
                with flight.record(Kind.SNAPSHOT, step=self.step):
                    pass
        said = StepMetrics(
            generation=self.generation,
            step=self.step,
            loss=6.0 * math.exp(-self.step / 50) if loss is None else loss,
            grad_norm=1.0,
            lr=1e-3,
            tokens=TOKENS,
            duration_s=STEP_S,
            unix_s=time.time(),
            skipped=loss is not None and not math.isfinite(loss),
        )
        self._journal.store([said])
        self.step += 1

    def _recover(self, reason: str, back_to: int) -> None:
        self._log(
            "fence", generation=self.generation, step=self.step, reason=reason, is_symptom=False
        )
        self.generation += 1
        self.step = back_to
        self._log("generation", generation=self.generation, source="arena", step=back_to)
        for flight in self._flights:
            flight.set_generation(self.generation)
            with flight.record(Kind.RESTORE, step=back_to):
                pass
        self._step()
        self._log("stepping", generation=self.generation, step=self.step)

    def _finish(self, outcome: str) -> None:
        self._log("run_over", outcome=outcome, detail="", step=self.step)
        self.outcome = outcome
        self._journal.set_facts(outcome=outcome)

    def _command(self, message: Command, peer: bytes) -> Accepted:
        del peer
        if message.operation == "set" and message.value <= 0:
            raise InputError(
                f"cannot set lr to {message.value}", remedy="set lr to a number above 0"
            )
        if message.operation == "extend":
            known = [one.count for one in self._journal.commands() if one.operation == "extend"]
            count = max(self.config.train.steps, *known, 0) + message.count
            message = msgspec.structs.replace(message, count=count)  # type: ignore[type-var]
        if message.operation == "evict" and message.node != 0:
            raise InputError(f"node {message.node} is not there", remedy="see `headway status`")
        self.commands.append(message)
        if message.operation == "inject":
            self._log(
                "injected", target=message.name, fault=message.fault, rank=message.rank, node=0
            )
            self._recover(f"rank {message.rank} is lost: killed", self.step)
            return Accepted(sequence=0)
        if message.operation == "rollback":
            reason = f"the run is rolled back to step {message.step} on request"
            self._recover(reason, message.step)
            return Accepted(sequence=0)
        if message.operation in ("pause", "resume"):
            self.paused = message.operation == "pause"
        names = ("operation", "name", "value", "count", "tokens")
        asked = Steer(sequence=0, **{name: getattr(message, name) for name in names})
        steer, _ = self._journal.add_command(message.id, asked)
        shown = ("sequence", "operation", "name", "value", "count")
        self._log("command", **{name: getattr(steer, name) for name in shown})
        self._carry_out(steer)
        return Accepted(sequence=steer.sequence)

    def _carry_out(self, steer: Steer) -> None:
        """What the ranks would report of an evaluation or a sample."""
        about = {"generation": self.generation, "step": self.step, "sequence": steer.sequence}
        if steer.operation == "evaluate":
            self._journal.store([Evaluation(loss=5.0, tokens=TOKENS, **about)])
        if steer.operation == "sample":
            tokens = steer.tokens + steer.tokens[-1:] * steer.count
            number = len(steer.tokens)
            self._journal.store([Sample(tokens=tokens, num_prompt_tokens=number, **about)])

    def _status(self, message: GetStatus, peer: bytes) -> Status:
        del peer
        me, commands = ProcessId.current(), self._journal.commands()
        extended = [one.count for one in commands if one.operation == "extend"]
        ranks = tuple(
            RankStatus(
                rank=rank, node=0, worker=f"w{rank}", pid=me.pid, status="running", step=self.step
            )
            for rank in range(self.config.parallel.world_size)
        )
        return Status(
            name=self.folder.name,
            phase=self.outcome or "running",
            epoch=1,
            generation=self.generation,
            step=self.step,
            steps=max(self.config.train.steps, *extended, 0),
            paused=self.paused,
            commands=len(commands),
            applied=len(commands),
            ranks=ranks[message.first_rank : message.first_rank + message.num_ranks],
            nodes={0: "active"},
            services={0: {"dataloader": me.pid}},
            waiting=self.waiting,
            troubles=self.troubles,
            num_ranks=len(ranks),
            statuses={"running": len(ranks)},
        )
