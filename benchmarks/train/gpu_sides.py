"""The two sides of ``gpu``, each with one ``step``; both keep their model on the device."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Sequence
from typing import Any

import torch
from headway.trainer.comm.groups import Groups
from headway.trainer.session.hooks import StepHooks, StepResult
from headway.trainer.session.session import Session
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.train.ours import LEARNING_RATE, configure, data
from benchmarks.train.peer_model import GPT, loss_of, optimizer
from benchmarks.train.peer_plain import CLIP
from benchmarks.train.shapes import Shape, rows

ANSWER_LIMIT_S = 600.0


class _Ended(BaseException):
    """The side is closed."""


class OurSide(StepHooks):
    """A ``Session`` on a thread of its own, which does one step per call of ``step``."""

    def __init__(
        self,
        shape: Shape,
        micro: int,
        device: torch.device,
        settings: Sequence[str],
        *,
        compiles: bool,
    ) -> None:
        own = {
            "train.dtype": "bf16",
            "train.micro_batch_size": micro,
            "train.compile": compiles,
        }
        config = configure(shape, own, settings)
        self._session = Session(config, 0, data_factory=data(config, shape, 0), device=device)
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._losses: queue.SimpleQueue[float | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(device,), daemon=True)
        self._thread.start()

    def step(self) -> float:
        """One optimizer step; raises what the session raised."""
        self._orders.put(True)
        answer = self._losses.get(timeout=ANSWER_LIMIT_S)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """End the session."""
        self._orders.put(False)
        self._thread.join(ANSWER_LIMIT_S)

    def on_step(self, result: StepResult) -> None:
        """Hand over the loss, and wait for the next call."""
        self._losses.put(result.loss)
        self._wait()

    def _wait(self) -> None:
        if not self._orders.get():
            raise _Ended

    def _run(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device.index or 0)
        try:
            self._wait()
            self._session.join(Groups.alone())
            self._session.load("init")
            self._session.run(self)
        except _Ended:
            pass
        except BaseException as error:
            self._losses.put(error)
        finally:
            with contextlib.suppress(Exception):
                self._session.leave()


class PlainSide:
    """Tuned plain torch."""

    def __init__(
        self,
        shape: Shape,
        micro: int,
        device: torch.device,
        precision: str,
        backend: str,
        *,
        compiles: bool,
    ) -> None:
        self.shape, self.micro, self.device = shape, micro, device
        self.is_auto = precision == "autocast"
        self._kernels = {
            "cudnn": [SDPBackend.CUDNN_ATTENTION],
            "flash": [SDPBackend.FLASH_ATTENTION],
        }[backend]
        torch.manual_seed(0)
        with torch.device(device):
            self.model = GPT(shape)
        for parameter in self.model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=shape.init_std)
        self.model.to_device(device, None if self.is_auto else torch.bfloat16)
        self.optimizer = optimizer(self.model, LEARNING_RATE)
        self._loss: Any = torch.compile(self._forward) if compiles else self._forward
        self._steps = 0

    def step(self) -> float:
        """One optimizer step on the same samples as ours."""
        shape = self.shape
        self.optimizer.zero_grad(set_to_none=True)
        values = torch.from_numpy(rows(shape, self._steps * shape.batch, shape.batch))
        self._steps += 1
        total = torch.zeros((), device=self.device)
        parts = values.long().to(self.device, non_blocking=True).split(self.micro)
        with sdpa_kernel(self._kernels):
            for part in parts:
                loss = self._loss(part[:, :-1].contiguous(), part[:, 1:].contiguous())
                (loss / len(parts)).backward()
                total += loss.detach() / len(parts)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return float(total)

    def close(self) -> None:
        """Nothing to end."""

    def _forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_auto):
            logits = self.model(tokens)
        return loss_of(logits, labels)
