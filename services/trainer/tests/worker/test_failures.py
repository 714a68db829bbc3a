"""Which errors are a peer's, and which of them a process does not outlive: with fakes of CUDA's."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from headway.common.config import from_dict
from headway.common.node.exit_record import ExitRecord
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import private_roots
from headway.testkit.trainer.layouts import small_run
from headway.trainer.comm import factories
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import PeerLost
from headway.trainer.config import RunConfig
from headway.trainer.worker import rank as rank_module
from headway.trainer.worker.failures import breaks_device, context_is_broken, reason_of

_dist: Any = torch.distributed
ILLEGAL = "CUDA error: an illegal memory access was encountered"
REMOTE = "NCCL error in: NCCLUtils.cpp:48, remote process exited\nncclRemoteError: A call failed"
SYSTEM = "NCCL error in: NCCLUtils.cpp:48, unhandled system error\nncclSystemError"
INTERNAL = "NCCL error in: NCCLUtils.cpp:48, internal error\nncclInternalError"
LOCAL = "NCCL error in: NCCLUtils.cpp:48\nncclUnhandledCudaError: Call to CUDA function failed"


@pytest.mark.parametrize(
    ("error", "reason", "is_broken"),
    [
        (PeerLost("RuntimeError: Connection closed by peer"), "peer", False),
        (_dist.DistBackendError(REMOTE), "peer", False),
        (RuntimeError(f"DistBackendError: {REMOTE}"), "peer", False),
        (_dist.DistBackendError(SYSTEM), "transport", False),
        (RuntimeError(f"DistBackendError: {INTERNAL}"), "transport", False),
        (OSError("a file that is called ncclSystemError"), "error", False),
        (_dist.DistBackendError(LOCAL), "error", True),
        (_dist.DistBackendError("ncclInvalidUsage: invalid usage"), "error", False),
        (torch.AcceleratorError(ILLEGAL), "error", True),
        (RuntimeError(ILLEGAL), "error", True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "error", True),
        (torch.cuda.OutOfMemoryError("CUDA out of memory. CUDA error: none"), "error", False),
        (FileNotFoundError(2, "No such file", "/mnt/store/corpus.bin"), "error", False),
        (RuntimeError("no parameter called nccl.store.peer timed out"), "error", False),
        (ConnectionResetError("connection to the data daemon"), "error", False),
        (ValueError("a bug"), "error", False),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_error_is_told_by_what_raised_it(
    error: BaseException, reason: str, is_broken: bool
) -> None:
    assert (reason_of(error), breaks_device(error)) == (reason, is_broken)


def test_a_device_that_broke_first_is_seen_behind_what_followed_it() -> None:
    try:
        try:
            raise torch.AcceleratorError(ILLEGAL)
        finally:
            raise ValueError("while the step was left")
    except ValueError as error:
        assert breaks_device(error)


class Stream:
    """A stream of a device that has failed, or not."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def query(self) -> bool:
        if self._error is not None:
            raise self._error
        return False


@pytest.mark.parametrize("error", [None, torch.AcceleratorError(ILLEGAL)])
def test_a_broken_context_is_found_without_waiting_whatever_was_raised(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    assert not context_is_broken(), "there is none without CUDA"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(error))
    assert context_is_broken() == (error is not None)


SCRIPT = """
import contextlib, sys, threading
from pathlib import Path
import torch
from headway.common.wire.messages.worker import Assign, Restore
from headway.trainer.worker import worker as module

class BrokenRank:
    rank = 0
    def __init__(self, context, rank): pass
    def serve(self, assign, lookup): raise eval(sys.argv[2])
    def count_life(self): pass
    waiting = contextlib.nullcontext()

module.Rank = BrokenRank
worker = module.Worker(Path(sys.argv[1]), 0, "n0w0")
worker._jobs.put(Assign(generation=1, rank=0, restore=Restore(source="init", step=0), commands=()))
worker._jobs.put(None)
code = worker.run()
worker.link.close()
print("alive, and", worker.view.status, flush=True)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (f"torch.AcceleratorError({ILLEGAL!r})", 1),
        ("torch.cuda.OutOfMemoryError('CUDA out of memory')", 0),
    ],
)
def test_a_worker_ends_with_last_words_after_a_cuda_error_and_after_no_other(
    tmp_path: Path, error: str, code: int
) -> None:
    """A standby takes over from a process that ended; one that lives is assigned its rank again."""
    with private_roots():
        folder = RunDir.create(tmp_path / "run", run_id=new_run_id())
        folder.config.write_text("")
        paths = NodePaths(folder.run_id, 0)
        paths.create()
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(folder.path), error],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ended.returncode == code, ended.stderr
        words = ExitRecord(paths.segment("words", "n0w0")).read()
        if code:
            assert words is not None and words.code == code
            assert words.reason.startswith(error.split("(")[0].split(".")[-1])
            assert "alive" not in ended.stdout
        else:
            assert words is None
            assert ended.stdout.endswith("alive, and left\n")


def test_a_lost_store_is_a_lost_peer_also_when_nccl_says_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store: Any = SimpleNamespace(is_lost=False)
    factory = factories.NcclFactory(store, Channels(), torch.device("cpu"), wraps=False)

    def fail(*_: Any, **__: Any) -> None:
        raise _dist.DistBackendError("store->get() got error: the generation's store is gone")

    monkeypatch.setattr(factories, "nccl_group", fail)
    monkeypatch.setattr(_dist, "PrefixStore", lambda *_: None)
    with pytest.raises(_dist.DistBackendError):
        factory.comm("tp", (0, 1), 0)
    store.is_lost = True
    with pytest.raises(PeerLost, match="store is gone"):
        factory.comm("tp", (0, 1), 0)


def test_a_worker_that_takes_another_rank_frees_the_old_model_at_once(tmp_path: Path) -> None:
    config = from_dict(
        RunConfig, {**small_run("fp32", world_size=1), "data": {"path": str(tmp_path)}}
    )
    with private_roots():
        paths = NodePaths(new_run_id(), 0)
        paths.create()
        context: Any = SimpleNamespace(config=config, paths=paths, run_dir=None)
        gc.collect()
        gc.disable()
        try:
            rank = rank_module.Rank(context, 0)
            rank._session.join(Groups.alone())
            model = weakref.ref(rank._session.flats[0].state)
            rank._session.leave()
            rank.close()
            del rank
            assert model() is None
        finally:
            gc.enable()
