"""A job that trains without the garbage collector, breaks off on request, and counts what is left.

With the collector off, whatever a step leaves behind is an object that counting cannot free.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from headway.common.config import from_dict
from headway.common.wire.messages.worker import Steer
from headway.testkit.trainer.pool import WorkerContext
from headway.testkit.trainer.sessions import arena_at
from headway.testkit.trainer.synthetic import synthetic
from headway.testkit.trainer.training import arena_path, run_generation
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.gloo import GlooComm
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.p2p import PipeComm
from headway.trainer.config import RunConfig
from headway.trainer.model.chunk import Forward
from headway.trainer.model.tape import Tape
from headway.trainer.pipeline.executor import Pipeline
from headway.trainer.session.hooks import Directive, StepHooks, StepResult
from headway.trainer.session.session import Session, Source

TIMEOUT_S = 5.0
"""gloo's own limit, which frees a thread that began an operation as its connection was cut."""
SETTLE_S = 4 * TIMEOUT_S
OF_A_STEP = (Pipeline, Forward, Tape)
OF_A_GENERATION = (Groups, Channels, PipeComm, GlooComm)


class Blown(RuntimeError):
    """What a fuse that raises raises."""


class Fuse:
    """A recorder that breaks a step off at its ``at``-th record: at any action, and at any wait.

    ``how`` is ``raise``, as an error in the training code, or ``fence``, as an abort from outside.
    ``records`` are how many each step had, so that a test knows where it can break one off.
    """

    def __init__(self) -> None:
        self.step, self.at, self.records = -1, 0, 0
        self.blow: Callable[[], None] = lambda: None

    def record(self, kind: int, **fields: int) -> AbstractContextManager[int]:
        """Count; see ``Recorder``."""
        del kind
        if fields["step"] == self.step:
            self.records += 1
        # a step may have a wait less than the one counted; then the next step's first will do
        if self.at and (self.records == self.at or fields["step"] > self.step):
            self.at = 0
            self.blow()
        return nullcontext(-1)

    def name(self, seq: int, collective: int) -> None:
        """See ``Recorder``."""

    def add(self, kind: int, start_ns: int, end_ns: int, *, step: int) -> None:
        """See ``Recorder``."""

    def set_generation(self, generation: int) -> None:
        """See ``Recorder``."""


class _Journal(StepHooks):
    """Takes a census after each step and each evaluation, and every loss."""

    def __init__(self, kept: _Kept) -> None:
        self.losses: dict[int, str] = {}
        self.taken: list[tuple[str, dict[str, int]]] = []
        self.held: dict[str, dict[str, int]] = {}
        """Census that found tensors too many -> what they are."""
        self._kept = kept

    def on_step(self, result: StepResult) -> None:
        """The step's own objects must be gone by now."""
        self.losses[result.step] = result.loss.hex()
        self.take(f"step {result.step}")

    def on_eval(self, step: int, loss: float, sequence: int = 0) -> None:
        """And those of the evaluation."""
        del loss, sequence
        self.take(f"evaluation {step}")

    def command_seq(self) -> int:
        """One command, which asks for a sample."""
        return 1

    def apply(self, step: int, applied: int, agreed: int) -> Directive:
        """Ask once in the life of the run."""
        del step
        return Directive(asked=(1,) if agreed > applied else ())

    def command(self, sequence: int) -> Steer:
        """The sample."""
        return Steer(sequence=sequence, operation="sample", value=0.8, count=2, tokens=(1,))

    def on_sample(self, sequence: int, step: int, prompt: list[int], tokens: list[int]) -> None:
        """And those of the sample."""
        del sequence, prompt, tokens
        self.take(f"sample {step}")

    def take(self, label: str) -> None:
        """Add a census."""
        kept = self._kept
        found = settled(kept.num_tensors, kept.limit_s, is_end=label.startswith("end"))
        if (found["tensors"], found["of_a_step"]) != (kept.num_tensors, 0):
            kept.limit_s = 0.0  # it leaks: the test has failed, let it come to its end
            self.held[label] = dict(descriptions() - kept.known)
        self.taken.append((label, found))


class _Kept:
    """A session that outlives its jobs, as a survivor's does."""

    def __init__(self, config: RunConfig, rank: int, folder: Path) -> None:
        self.num_before, self.before = census()["tensors"], descriptions()
        self.num_tensors = -1
        self.known: Counter[str] = Counter()
        self.limit_s = SETTLE_S
        self.recorder = Fuse()
        self.session = Session(
            config,
            rank,
            data_factory=synthetic(config, rank),
            open_arena=arena_at(arena_path(folder, rank), rank),
            recorder=self.recorder,
        )


def train_until_broken(
    context: WorkerContext,
    *,
    config: dict[str, Any],
    rank: int,
    generation: int,
    folder: str,
    until: int,
    keep: str,
    source: Source = "init",
    step: int = 0,
    fuse_step: int = -1,
    fuse_at: int = 0,
    fuse: str = "",
    is_last: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """Train to ``until`` steps, or until this rank's ``fuse`` blows or a peer's does.

    Returns how it ended, the losses, the census after each step, evaluation and end, and how many
    records ``fuse_step`` had. ``is_last`` releases the session and counts what is left. On a busy
    machine a rank may be later than ``TIMEOUT_S``: a part that must reach its end needs more.
    """
    with no_collections():
        if keep not in context.kept:
            context.kept[keep] = _Kept(from_dict(RunConfig, config), rank, Path(folder))
        kept: _Kept = context.kept[keep]
        session, recorder, journal = kept.session, kept.recorder, _Journal(kept)
        recorder.step, recorder.at, recorder.records = fuse_step, fuse_at, 0
        recorder.blow = _blower(context, generation, fuse)

        def restore() -> None:
            session.load(source, step)
            if kept.num_tensors < 0:  # the model is built, and nothing else has happened yet
                kept.num_tensors, kept.known = census()["tensors"], descriptions()

        why = run_generation(
            context, session, rank, generation, folder, restore, journal, until, timeout_s
        )
        journal.take(f"end {generation}")
        report: dict[str, Any] = {
            "why": why,
            "losses": {str(k): v for k, v in journal.losses.items()},
            "census": journal.taken,
            "records": recorder.records,
            "held": journal.held,
        }
        if is_last:
            session.close()
            num_before, before, limit_s = kept.num_before, kept.before, kept.limit_s
            del session, kept, journal, context.kept[keep]
            found = settled(num_before, limit_s, at_most=True)
            report["left"] = found["tensors"] - num_before
            if report["left"] > 0:
                report["held"]["closed"] = dict(descriptions() - before)
        return report


def _blower(context: WorkerContext, generation: int, how: str) -> Callable[[], None]:
    def fence() -> None:
        threading.Thread(target=context.fence.abort, args=(generation,), daemon=True).start()

    def fail() -> None:
        raise Blown

    return {"fence": fence, "raise": fail}.get(how, lambda: None)


@contextmanager
def no_collections() -> Iterator[None]:
    """Start from what is alive now, then leave everything to reference counting."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def census() -> dict[str, int]:
    """Living objects of steps, living tensors, the bytes that those hold, all bytes of malloc."""
    found, tensors = gc.get_objects(), living_tensors()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return {
        "of_a_step": sum(isinstance(item, OF_A_STEP) for item in found),
        "of_a_generation": sum(isinstance(item, OF_A_GENERATION) for item in found),
        "tensors": len(tensors),
        "tensor_bytes": sum(storages.values()),
        "malloc_bytes": _malloc_bytes(),
    }


def living_tensors() -> list[torch.Tensor]:
    """Without a compiler's subclasses, which have no memory."""
    return [t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter)]


def descriptions() -> Counter[str]:
    """How often tensors of a shape live that the same kinds of objects refer to."""
    found: Counter[str] = Counter()
    tensors = living_tensors()
    for tensor in tensors:
        holders = {_kind(item) for item in gc.get_referrers(tensor) if item is not tensors}
        found[
            f"{tuple(tensor.shape)} {tensor.dtype}, held by {sorted(holders) or 'no object'}"
        ] += 1
    return found


def _kind(item: object) -> str:
    if isinstance(item, FrameType):
        return f"frame of {item.f_code.co_qualname}"
    return type(item).__qualname__


def settled(
    num_tensors: int, limit_s: float, *, is_end: bool = False, at_most: bool = False
) -> dict[str, int]:
    """Return the census once everything has settled, or after ``limit_s``.

    It has settled when ``num_tensors`` tensors and no objects of a step live, and at the end of a
    generation none of its communicators.

    Other threads may take a moment to let go: gloo's of what it has just reduced, the one that
    copies the snapshot of its slot, and after an abort those in the middle of an operation.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        found = census()
        is_settled = (found["tensors"], found["of_a_step"]) == (num_tensors, 0)
        is_settled |= at_most and found["tensors"] < num_tensors
        is_settled = is_settled and (not is_end or found["of_a_generation"] == 0)
        if is_settled or time.monotonic() > deadline_s:
            return found
        time.sleep(0.002)


class _MallInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd",
        "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


def _malloc_bytes() -> int:
    """Bytes of C memory in use, tensors that only C++ knows of included; an exact number."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallInfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)
