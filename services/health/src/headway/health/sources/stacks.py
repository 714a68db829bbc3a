"""Where the ranks of this node are in their programs, asked only while they may hang.

A rank answers by itself (``common.node.stack_dump``), so a debugger is not needed and a hung disk
holds nothing up. One that cannot answer is shown by what the kernel knows of it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headway.common.node.process import ProcessId
from headway.common.node.stack_dump import ask, stack_file
from headway.common.wire.messages.health import WorkerSignals
from headway.health.dumps.frames import place
from headway.health.dumps.stacks import read_stacks

AGAIN_S: Final = 30.0
"""A rank that still hangs is asked again: it may hang somewhere else."""
ANSWER_S: Final = 2.0
"""Without an answer for so long, the kernel's view of the process is shown instead."""
MAX_FILE_BYTES: Final = 1 << 20
"""A file that has grown beyond it is emptied before the next question."""
MAX_ANSWER_BYTES: Final = 1 << 18


@dataclass(slots=True)
class _Question:
    head: int
    """Head of the rank's flight ring: another one means that the rank has moved since."""
    at_s: float
    offset: int
    is_asked: bool
    place: str = ""


class StackSource:
    """Asks the ranks whose signals it is given; no call waits."""

    def __init__(self, shm_dir: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._shm_dir, self._clock_s = shm_dir, clock_s
        self._questions: dict[ProcessId, _Question] = {}
        self._hanging: set[ProcessId] = set()
        """Those of the last call."""

    def read(self, workers: Iterable[WorkerSignals]) -> dict[int, str]:
        """Rank -> where its main thread is; empty until it has answered.

        Those that are left out are forgotten only once they would be asked again: a rank is asked
        at most once in ``AGAIN_S``, however it moves.
        """
        now_s = self._clock_s()
        self._questions = {
            process: one
            for process, one in self._questions.items()
            if now_s - one.at_s <= AGAIN_S or process in self._hanging
        }
        found, self._hanging = {}, set[ProcessId]()
        for worker in workers:
            process = ProcessId(worker.pid, worker.start_ticks)
            self._hanging.add(process)
            question = self._questions.get(process)
            if question is None or now_s - question.at_s > AGAIN_S:
                is_same = question is not None and question.head == worker.head
                place = question.place if question is not None and is_same else ""
                question = self._questions[process] = self._ask(process, worker.head, now_s)
                question.place = place
            if question.head == worker.head:
                self._look(process, question, worker, now_s)
            found[worker.rank] = question.place if question.head == worker.head else ""
        return found

    def _ask(self, process: ProcessId, head: int, now_s: float) -> _Question:
        path = stack_file(self._shm_dir, process.pid)
        size = 0
        with contextlib.suppress(OSError):
            if (size := path.stat().st_size) > MAX_FILE_BYTES:
                os.truncate(path, 0)
                size = 0
        return _Question(head, now_s, size, ask(process))

    def _look(
        self, process: ProcessId, question: _Question, worker: WorkerSignals, now_s: float
    ) -> None:
        if question.is_asked and (text := self._answer(process, question.offset)):
            stacks = read_stacks(text)
            main = stacks[0].main if stacks else None
            if main is not None and main.frames:
                question.place = place(main.frames)
                return
        if not question.place and now_s - question.at_s > ANSWER_S:
            question.place = f"no answer; state {worker.state}, in {_wchan(process.pid)}"

    def _answer(self, process: ProcessId, offset: int) -> str:
        try:
            with stack_file(self._shm_dir, process.pid).open("rb") as file:
                file.seek(offset)
                return file.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""


def _wchan(pid: int) -> str:
    """The kernel's function in which a process waits."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text().strip("\0\n ") or "user space"
    return "an unknown place"
