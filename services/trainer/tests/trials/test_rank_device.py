"""A trial's rank takes its GPU as a run's rank does; the GPU is a stand-in."""

from __future__ import annotations

import os

import pytest
import torch
from headway.common.config import from_dict
from headway.testkit.trainer.layouts import small_run
from headway.trainer.comm import nccl_profile
from headway.trainer.config import RunConfig
from headway.trainer.trials import rank as trial


def test_a_rank_on_a_gpu_is_bound_next_to_it_with_the_profile_of_nccl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[object] = []
    gpu = torch.device("cuda", 3)
    monkeypatch.setattr(nccl_profile, "apply", lambda parallel: done.append(parallel.nccl_profile))
    monkeypatch.setattr(trial, "take_device", lambda rank: done.append(rank) or gpu)
    monkeypatch.setattr(trial, "pci_address", lambda device: f"address of {device}")
    monkeypatch.setattr(trial, "bind_near", done.append)
    settings = small_run("bf16", parallel={"dp": 4, "nccl_profile": "ib"}, world_size=4)
    settings["train"]["device"] = "gpu"
    assert trial._take_device(from_dict(RunConfig, settings), 3) == gpu
    assert done == ["ib", 3, "address of cuda:3"]


def test_a_rank_on_the_cpu_runs_where_it_may_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "take_device", lambda _: pytest.fail("a GPU was asked for"))
    before = os.sched_getaffinity(0)
    config = from_dict(RunConfig, small_run("fp32", parallel={"dp": 2}, world_size=2))
    assert trial._take_device(config, 0) == torch.device("cpu")
    assert os.sched_getaffinity(0) == before
