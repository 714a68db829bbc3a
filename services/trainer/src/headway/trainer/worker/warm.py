"""Prepares the GPU of a standby while it waits, so that a recovery need not.

A standby takes over any rank of its node, so where the node has several GPUs it does not know its
own before it is assigned. It then holds a context on each one that it may get, and gives the others
up when it knows. Where only one comes into question, it prepares cuBLAS, cuDNN and some kernels
there, too. NCCL comes later: the first communicator of a process reads the environment for all.

Ranks train on these GPUs meanwhile, so this happens only where the predicted memory of every rank
leaves room. Nothing of it has run on a GPU yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import torch
from headway.common.log import get_logger
from headway.common.plan.memory import predict_all
from headway.trainer.config import RunConfig
from headway.trainer.config.memory import memory_shape
from headway.trainer.device.choose import device_index, set_environment
from headway.trainer.device.contexts import Contexts
from headway.trainer.device.deterministic import make_deterministic
from headway.trainer.worker.memory import OWN_BEYOND_TORCH

WARM_AFTER_S = 10.0
"""A standby waits so long before it begins: most workers of a start or a recovery get a rank at
once."""
SLACK = 1.1
"""Factor over the predicted memory, for what torch's allocator keeps in pieces that do not fit."""
CONTEXT = 1 << 30
"""Bytes on a GPU of a standby's context, with the libraries that it loads there."""
_LENGTH, _HEADS, _WIDTH = 128, 2, 64
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}

log = get_logger("worker")


class WarmUp:
    """Runs on a thread of its own until the worker is assigned a rank; never raises."""

    def __init__(
        self,
        config: RunConfig,
        *,
        after_s: float = WARM_AFTER_S,
        open_contexts: Callable[[], Contexts] = Contexts,
    ) -> None:
        self._config, self._after_s, self._open_contexts = config, after_s, open_contexts
        self._assigned = threading.Event()
        self._rank = -1
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, if ranks compute on GPUs; returns at once."""
        if self._config.train.device == "gpu":
            # a daemon, since a call to a driver may never return
            self._thread = threading.Thread(target=self._run, name="warm-up", daemon=True)
            self._thread.start()

    def assigned(self, rank: int) -> None:
        """Begin nothing more and give up other GPUs than that of ``rank``; never blocks."""
        self._rank = rank
        self._assigned.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; whether it has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        if self._assigned.wait(self._after_s):
            return
        try:
            if self._config.train.deterministic:
                make_deterministic()
            set_environment()
            indices = self._candidates() if torch.cuda.is_available() else []
            if len(indices) == 1:
                self._prepare(torch.device("cuda", indices[0]))
            elif indices:
                self._hold(indices)
        except Exception as error:  # a rank does without
            log.warning("the standby did not prepare its GPU", error=repr(error)[:300])

    def _candidates(self) -> list[int]:
        """The GPUs that any rank may get here and that have room for a second process."""
        config = self._config
        found = sorted({device_index(rank) for rank in range(config.parallel.world_size)})
        if config.model.architecture.own_block is not None:  # its memory is not predicted
            return []
        most = max(memory.total for memory in predict_all(memory_shape(config)))
        ranks = -(-config.launch.ranks_per_node // torch.cuda.device_count())
        wanted = ranks * (SLACK * most + OWN_BEYOND_TORCH) + config.launch.standbys * CONTEXT
        totals = [torch.cuda.get_device_properties(index).total_memory for index in found]
        if any(total < wanted for total in totals):
            log.info("no room beside a rank: the standby prepares no GPU", bytes=round(wanted))
            return []
        return found

    def _prepare(self, device: torch.device) -> None:
        """Run small operations until the worker is assigned; what memory they took is free then."""
        if not self._open_contexts().is_shared(device.index):
            return
        dtype = _DTYPES[self._config.train.dtype]
        with torch.cuda.device(device):
            for name in small_work(device, dtype):
                if self._assigned.is_set():
                    break
                log.debug("prepared", what=name)
            torch.cuda.synchronize()
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
        log.info("the standby has prepared its GPU", device=str(device))

    def _hold(self, indices: list[int]) -> None:
        """Hold a context on each GPU until the worker is assigned, then only on its own."""
        contexts = self._open_contexts()
        for index in indices:
            if self._assigned.is_set():
                break
            try:
                if contexts.is_shared(index):
                    contexts.retain(index)
            except RuntimeError as error:  # that GPU is for its rank to report
                log.warning("no context on a GPU", gpu=index, error=str(error))
        log.info("the standby holds contexts", gpus=len(indices))
        self._assigned.wait()
        contexts.release_all_but(device_index(self._rank))


def small_work(device: torch.device, dtype: torch.dtype) -> Iterator[str]:
    """Do one kind of a step's operations after the other; yields the name of each.

    They create the context, the handles of cuBLAS and cuDNN, and load the modules of their kernels.
    """
    x = torch.ones((_LENGTH, _LENGTH), device=device, dtype=dtype)
    yield "context"
    (x @ x).add_(x)
    yield "products"
    if device.type == "cuda":
        torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    shape = (1, _HEADS, _LENGTH, _WIDTH)
    q, k, v = (torch.ones(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.autograd.grad(out.sum(), (q, k, v))
    yield "attention"
    logits = x.float()
    torch.nn.functional.cross_entropy(logits, logits.argmax(dim=1))
    torch.nn.functional.layer_norm(x, (_LENGTH,))
    yield "loss and norms"
