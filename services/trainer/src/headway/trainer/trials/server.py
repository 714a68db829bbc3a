"""Runs trials one after another: imports torch once and forks the ranks of each.

It reads a ``Trial`` per line from stdin and writes an ``Outcome`` per line to stdout. Its ranks end
with it, and it ends with its stdin.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from headway.common.config import from_dict, to_dict
from headway.common.node.process import end_with_parent, ending_with_me
from headway.trainer.config import RunConfig
from headway.trainer.trials.order import Outcome, Trial

if TYPE_CHECKING:
    from headway.trainer.trials.passes import Passes

LOOK_S = 0.02
"""Between two looks at the ranks and at stdin."""


class Abandoned(BaseException):
    """Stdin was closed. Not an ``Exception``: no rank has failed."""


def serve(folder: Path) -> int:
    """Carry out trials until stdin ends; ``folder`` is for logs and what ranks exchange.

    It is removed at the end.
    """
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # a library that prints must not break a line of JSON
        import headway.trainer.trials.passes
        import headway.trainer.trials.rank  # noqa: F401 - imported before the fork, once

        gc.collect()
        gc.freeze()
        server = _Server(folder)
        with contextlib.suppress(Abandoned), contextlib.closing(server):
            while line := sys.stdin.readline():
                outcome = server.run(msgspec.json.decode(line, type=Trial))
                print(msgspec.json.encode(outcome).decode(), file=out, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


class _Server:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._daemon: subprocess.Popen[bytes] | None = None
        self._recorded: dict[str, Path] = {}

    def run(self, trial: Trial) -> Outcome:
        """Train on all ranks; an error of theirs becomes the outcome's."""
        config = from_dict(RunConfig, trial.config)
        folder = self._folder / f"trial-{self._number}"
        folder.mkdir()
        self._number += 1
        try:
            passes = self._passes(config) if trial.stand_in else None
        except _RankFailed as failure:
            return Outcome(error=f"passes could not be recorded: {failure}")
        if trial.stand_in:  # compiled kernels are in the recorded times
            config = dataclasses.replace(
                config, train=dataclasses.replace(config.train, compile=False)
            )
        endpoint = "" if trial.stand_in or not trial.reads_ahead else self._data_daemon()

        def rank(number: int) -> object:
            from headway.trainer.trials.rank import Place, train

            found = None if passes is None else _read_passes(passes)
            return train(config, Place(number, self._number, folder, endpoint, found))

        try:
            reports = _fork(folder, config.parallel.world_size, rank)
        except _RankFailed as failure:
            return Outcome(error=str(failure))
        outcomes = [msgspec.convert(report, Outcome) for report in reports]
        peaks = [one.peak_bytes for one in outcomes if one.peak_bytes is not None]
        return dataclasses.replace(outcomes[0], peak_bytes=max(peaks, default=None))

    def close(self) -> None:
        """End the data daemon, which removes its rings."""
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait()

    def _passes(self, config: RunConfig) -> Path:
        """The file of the passes of ``config``; they are recorded once for each model and cut.

        What only changes when work is issued, or how many micro-batches a step has, changes none.
        """
        parallel = dataclasses.replace(
            config.parallel, overlap_p2p=True, overlap_grad_reduce=True, overlap_param_gather=True
        )
        train = dataclasses.replace(config.train, steps=1, global_batch_size=1, eval_batches=1)
        own = [to_dict(part) for part in (config.model, parallel, train)]
        key = json.dumps([*own, config.launch.threads_per_rank], sort_keys=True)
        if key not in self._recorded:
            folder = self._folder / f"passes-{len(self._recorded)}"
            folder.mkdir()

            def record(_: int) -> object:
                import torch
                from headway.trainer.trials.passes import record_passes

                torch.set_num_threads(config.launch.threads_per_rank)
                return record_passes(config)

            _fork(folder, 1, record)
            self._recorded[key] = folder / "report-0.json"
        return self._recorded[key]

    def _data_daemon(self) -> str:
        """Endpoint of the daemon that reads ahead, as one does in each node of a run."""
        endpoint = f"ipc://{self._folder}/data.sock"
        if self._daemon is None:
            options = ["--endpoint", endpoint, "--shm-dir", str(self._folder / "rings")]
            with (self._folder / "dataloader.log").open("wb") as log:
                self._daemon = subprocess.Popen(
                    [sys.executable, "-m", "headway.dataloader", "serve", *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        return endpoint


class _RankFailed(Exception):
    """A forked process raised, or ended without a report."""


def _read_passes(file: Path) -> list[list[Passes]]:
    from headway.trainer.trials.passes import Passes

    return msgspec.json.decode(file.read_bytes(), type=list[list[Passes]])


def _fork(folder: Path, count: int, run: Callable[[int], object]) -> list[object]:
    """Run ``run(0)`` to ``run(count - 1)`` in forked processes; returns what they return, as JSON.

    Raises:
        _RankFailed: one of them did not succeed; the others have been ended.
        Abandoned: stdin was closed meanwhile.
    """
    running: dict[int, int] = {}
    orders = select.poll()
    orders.register(sys.stdin, select.POLLIN)
    try:
        for number in range(count):
            running[_forked(folder, number, run)] = number
        while running:
            if orders.poll(1e3 * LOOK_S):
                raise Abandoned  # its owner sends nothing before it has the outcome
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    number = running.pop(pid)
                    if status:
                        raise _RankFailed(_reason(folder, number, status))
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        for pid in running:
            os.waitpid(pid, 0)
    return [json.loads((folder / f"report-{n}.json").read_bytes()) for n in range(count)]


def _forked(folder: Path, number: int, run: Callable[[int], object]) -> int:
    """Fork one process, which writes its report and never returns; returns its pid."""
    os.environ |= ending_with_me({})
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        end_with_parent()
        log = os.open(folder / f"log-{number}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        report = msgspec.json.encode(run(number))
        (folder / f"report-{number}.json").write_bytes(report)
        code = 0
    except BaseException as error:
        traceback.print_exc()
        words = " ".join(str(error).split())[:400]
        (folder / f"error-{number}").write_text(f"{type(error).__name__}: {words}")
    finally:
        sys.stderr.flush()
        os._exit(code)  # threads of groups and libraries would be waited for


def _reason(folder: Path, number: int, status: int) -> str:
    """Why a process failed: the first error that is not only the loss of a peer."""
    said = [path.read_text() for path in sorted(folder.glob("error-*"))]
    causes = [text for text in said if not text.startswith("PeerLost")] or said
    code = os.waitstatus_to_exitcode(status)
    return causes[0] if causes else f"rank {number} ended with code {code}; no error was written"
