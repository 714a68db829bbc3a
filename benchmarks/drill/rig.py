"""The place of a drill on this machine: roots of its own, small runs, and an end that leaves
nothing."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headway.common.errors import HeadwayError
from headway.common.node.janitor import end_run, processes_of
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import ENV_SHM_ROOT, ENV_SOCK_ROOT
from headway.console.cluster import Cluster
from headway.console.run import TERMINAL_OUTCOMES, Run
from headway.controller.faults import cgroups, faults
from headway.dataloader.config import DataConfig
from headway.dataloader.prepare import prepare
from headway.testkit.freezing import wait_frozen

from benchmarks.drill import means
from benchmarks.drill.look import environments, members, places_of, seconds_until

CONFIG = "examples/tiny.toml"
SHAPE = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64",
    "model.vocab_size=512",
    "train.dtype=fp32", "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=0",
    "train.global_batch_size=8", "parallel.pp=2", "parallel.dp=1", "launch.nodes=2",
    "launch.ranks_per_node=1", "launch.spares=1", "launch.standbys=1", "ckpt.durable_every=5",
    "optim.lr=1e-3", "optim.min_lr=1e-3", "optim.warmup_steps=1",
)  # fmt: skip
"""2 nodes x 1 rank and a spare, hidden 64: on two cores some 20 steps a second."""
STOP_LIMIT_S = 60.0
LEFT_LIMIT_S = 10.0
"""The last processes of a run end a moment after it is over."""
START_DISK_BYTES = 4 << 30
"""A start is refused with less than 2 GiB of room."""
ROOM_BYTES = 400 << 20
"""What a run on a disk of its own has left once it has started: quickly filled."""
HOLDER_IMPORTS_S = 0.7
ROOTS = ("/tmp", "/dev/shm")


class Rig:
    """``with Rig() as rig``: everything that was started, frozen, mounted or made is gone after it.

    ``own_clock`` gives the runs a wall clock that ``clock_step`` can move; ``own_disk`` puts them
    on a small file system that can be filled.
    """

    def __init__(self, *, own_clock: bool = False, own_disk: bool = False) -> None:
        self._started: list[Run] = []
        self._is_small, self._is_mounted = own_disk, False
        with contextlib.ExitStack() as stack:
            self.folder, shm = (Path(stack.enter_context(_folder(at))) for at in ROOTS)
            self.runs = self.folder / "runs"
            self.runs.mkdir()
            stack.callback(self._unmount)
            wanted = {
                ENV_SOCK_ROOT: str(self.folder / "s"),
                ENV_SHM_ROOT: str(shm),
                "HEADWAY_CACHE": str(self.folder / "cache"),
                "OMP_NUM_THREADS": "1",
            }
            if own_disk:
                self._mount("-t", "tmpfs", "-o", f"size={START_DISK_BYTES}", "none")
            if own_clock:
                wanted |= means.own_clock(self.folder)
            self.data = tiny_corpus(self.folder / "corpus")
            stack.enter_context(patch.dict(os.environ, wanted))
            stack.callback(self._end)
            self._open = stack.pop_all()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # ---- the run ------------------------------------------------------------------------------
    def launch(self, name: str, *overrides: str, steps: int = 1_000_000) -> Run:
        """Start a small run, or resume the one of that name."""
        return self.start(name, *SHAPE, f"train.steps={steps}", *overrides)

    def start(self, name: str, *settings: str) -> Run:
        """Start a run of any shape, on the rig's corpus if no other is set."""
        if self._is_small:
            self._resize(START_DISK_BYTES)
        run = Cluster(self.runs).launch(CONFIG, [f"data.path={self.data}", *settings], name=name)
        if self._is_small:
            self._resize(shutil.disk_usage(self.runs).used + ROOM_BYTES)
        if run.name not in [known.name for known in self._started]:
            self._started.append(run)
        return run

    def finish(self, run: Run) -> dict[str, Any]:
        """Stop the run as a user would; returns what was left of it, for ``judge.left``."""
        left: dict[str, Any] = {"outcome": ""}
        try:
            if run.outcome not in TERMINAL_OUTCOMES:
                run.stop()
            left["outcome"] = run.wait(STOP_LIMIT_S)
        except HeadwayError as error:
            left["outcome"] = f"does not stop: {error.message}"
        seconds_until(lambda: not processes_of(run.folder.run_id), LEFT_LIMIT_S)
        left["processes"] = [f"{role} {node} ({p.pid})" for p, role, node in members(run)]
        left["holders"] = [str(process.pid) for process in self.holders()]
        left["frozen"] = [path.name for path in cgroups.groups()]
        return left

    # ---- faults -------------------------------------------------------------------------------
    def hold(
        self, run: Run, fault: str, processes: Sequence[ProcessId], seconds: float
    ) -> ProcessId:
        """Begin a fault that lasts; returns who holds it once it is there."""
        holder = faults.hold(fault, processes, places_of(run, 0), seconds)
        if fault in ("freeze", "silent_node", "returning_node"):
            assert all(wait_frozen(process) for process in processes), f"{fault} did not take"
        else:
            time.sleep(HOLDER_IMPORTS_S)
        assert holder.alive(), f"{fault} ended at once"
        return holder

    def release(self) -> None:
        """End every fault that lasts."""
        holders = self.holders()
        for holder in holders:
            holder.kill(signal.SIGTERM)
        seconds_until(lambda: not any(holder.alive() for holder in holders), 15.0)

    def holders(self) -> list[ProcessId]:
        """Processes that hold a fault of one of these runs."""
        ids = {run.folder.run_id for run in self._started}
        return [found for found, env in environments() if env.get(faults.ENV_FAULT) in ids]

    # ---- disks and the end --------------------------------------------------------------------
    def mount_image(self) -> None:
        """Put the runs on an ext4 in a file, which can be frozen."""
        image = self.folder / "disk"
        with image.open("wb") as opened:
            opened.truncate(START_DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
        self._mount("-o", "loop", str(image))

    def _mount(self, *words: str) -> None:
        subprocess.run(["mount", *words, str(self.runs)], check=True, capture_output=True)
        self._is_mounted = True

    def _resize(self, nbytes: int) -> None:
        self._mount("-o", f"remount,size={nbytes}")

    def _unmount(self) -> None:
        if self._is_mounted:
            words = ["umount", "-l", str(self.runs)]
            subprocess.run(words, check=False, capture_output=True)

    def _end(self) -> None:
        """End what was started, whatever state it is in."""
        self.release()
        cgroups.undo_abandoned()
        for run in self._started:
            with contextlib.suppress(HeadwayError):
                end_run(run.folder.run_id)


def _folder(where: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="hw-drill-", dir=where, ignore_cleanup_errors=True)


def tiny_corpus(folder: Path) -> Path:
    """Some 100 KB of made-up words, prepared with a vocabulary of 512."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 8))) for _ in range(300)]
    (folder / "text").mkdir(parents=True)
    for number in range(40):
        lines = [" ".join(rng.choices(words, k=10)) for _ in range(50)]
        (folder / "text" / f"{number}.txt").write_text("\n".join(lines))
    text, data = str(folder / "text"), folder / "data"
    prepare(DataConfig(path=str(data), source=text, vocab_size=512))
    return data
