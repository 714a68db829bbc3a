"""The process that reads NVML, with a deadline. At most one exists, even if it cannot be ended."""

from __future__ import annotations

import contextlib
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from headway.health.sources.gpu_burst import GpuBursts
from headway.health.sources.nvml import Reading

T = TypeVar("T")
MAX_REPLY_BYTES: Final = 1 << 20
"""A longer reply is not one."""
MAX_RESTART_S: Final = 60.0
"""The longest time before a process that has crashed is started again."""


class GpuProbe:
    """Asks the process for readings, and starts it when there is none.

    Args:
        library: name or path of the library.
        deadline_s: of one reading, the start of the process included. A process that misses it is
            killed; one that does not end then, since it hangs in the driver, is left to itself, and
            no second one is started. One that crashes is started again after 1 s, 2 s, 4 s and so
            on up to a minute.
        clock_s: for these times.
    """

    def __init__(
        self, library: str, deadline_s: float, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._library, self._deadline_s, self._clock_s = library, deadline_s, clock_s
        self._process: subprocess.Popen[bytes] | None = None
        self._num_crashes, self._start_s = 0, -math.inf
        """Crashes since the last reading, and when the next process may be started."""
        self._why = ""
        """What the newest crash was."""

    def read(self) -> Reading:
        """A reading, or why there is none.

        Raises:
            TimeoutError: there is no answer within the deadline, or an earlier process still hangs.
        """
        if self._process is not None and self._process.poll() is not None:
            code, was_ended = self._process.poll(), self._process.stdin is None
            self._forget()
            if not was_ended:
                return self._crashed(f"it ended with code {code}")
        elif self._process is not None and self._process.stdin is None:
            raise TimeoutError("the process that asks the driver hangs, and cannot be ended")
        if self._process is None and self._clock_s() < self._start_s:
            return Reading(error=self._why)
        try:
            reading = self._ask(self._process or self._start())
        except TimeoutError:
            self._end()
            raise
        except (OSError, msgspec.DecodeError) as error:
            self._end()
            return self._crashed(str(error))
        self._num_crashes = 0
        return reading

    def _crashed(self, why: str) -> Reading:
        """Wait before the next start, twice as long after each crash."""
        self._start_s = self._clock_s() + min(2.0**self._num_crashes, MAX_RESTART_S)
        self._num_crashes = min(self._num_crashes + 1, 16)
        self._why = f"the process that reads NVML failed: {why}"
        return Reading(error=self._why)

    def close(self) -> None:
        self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headway.health.sources.gpu_process", self._library]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self._process

    def burst(self, seconds: float, meanwhile: Callable[[], T]) -> tuple[T, GpuBursts]:
        """What ``meanwhile`` returns, and what all GPUs do in these ``seconds``.

        If the driver does not answer within the deadline, before or after them, ``meanwhile`` is
        called all the same, and the result says why there are no GPUs.
        """
        error, sent_s = "", 0.0
        try:
            error = self.read().error  # the process has started then, and knows its GPUs
            if not error and self._process is not None:
                self._send(self._process, f"{seconds}\n".encode())
            sent_s = time.monotonic()
        except OSError as refused:
            error = str(refused)
        result = meanwhile()
        if error or self._process is None:
            return result, GpuBursts(error=error or "the process that reads NVML has ended")
        try:
            spent_s = time.monotonic() - sent_s
            reply = self._receive(self._process, max(0.1, seconds + self._deadline_s - spent_s))
            return result, msgspec.json.decode(reply, type=GpuBursts)
        except (OSError, msgspec.DecodeError) as broken:
            self._end()
            return result, GpuBursts(error=str(broken))

    def _ask(self, process: subprocess.Popen[bytes]) -> Reading:
        self._send(process, b"\n")
        return msgspec.json.decode(self._receive(process, self._deadline_s), type=Reading)

    @staticmethod
    def _send(process: subprocess.Popen[bytes], line: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(line)
        process.stdin.flush()

    def _receive(self, process: subprocess.Popen[bytes], deadline_s: float) -> bytes:
        """Its next line. Raises TimeoutError, OSError."""
        assert process.stdout is not None
        reply, until_s = b"", time.monotonic() + deadline_s
        descriptor = process.stdout.fileno()
        answer = select.poll()
        answer.register(descriptor, select.POLLIN)
        while not reply.endswith(b"\n"):
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not answer.poll(left_s * 1000):
                raise TimeoutError(f"the driver did not answer for {deadline_s:.0f} s")
            block = os.read(descriptor, 1 << 16)
            reply += block
            if not block or len(reply) > MAX_REPLY_BYTES:
                raise OSError(f"it ended with code {process.poll()}" if not block else "too long")
        return reply

    def _end(self) -> None:
        """Kill the process. What cannot be ended is kept, without its pipes."""
        if self._process is None:
            return
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.stdin = self._process.stdout = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
            self._process = None

    def _forget(self) -> None:
        self._end()
        self._process = None
