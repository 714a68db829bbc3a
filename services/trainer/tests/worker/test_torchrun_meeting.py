"""What ranks under torchrun have in common although each looks at its own machine."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import torch.distributed
from headway.trainer.config import RunConfig
from headway.trainer.worker.torchrun import Meeting, Place

_dist: Any = torch.distributed


def test_all_ranks_take_the_type_and_the_compiler_of_the_first() -> None:
    """Catches ranks of one run of which some fuse kernels: their bits differ."""
    agent = _dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30)
    )
    config = RunConfig()
    found = []
    for rank, (dtype, compiles) in enumerate([("bf16", True), ("fp32", False)]):
        place = Place(rank=rank, world_size=2, port=agent.port)
        train = dataclasses.replace(config.train, dtype=dtype, compile=compiles)
        meeting = Meeting(place, 30.0)
        found.append(meeting.alike(dataclasses.replace(config, train=train)).train)
    assert [(train.dtype, train.compile) for train in found] == [("bf16", True)] * 2
