"""The limits of gloo's operations: one for the first step of a generation, and a shorter one after
it."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from headway.trainer.comm.channel import Channels
from headway.trainer.comm.gloo import GlooComm, gloo_options
from headway.trainer.comm.groups import Groups
from headway.trainer.comm.interface import PeerLost

_dist: Any = torch.distributed
LONG_S, SHORT_S = 60.0, 1.0


def _pair(folder: Path) -> tuple[GlooComm, object]:
    """This rank's end of a group of two, and the other end, which takes part in nothing."""
    made: dict[int, Any] = {}

    def join(rank: int) -> None:
        store = _dist.FileStore(str(folder / "store"), 2)
        made[rank] = _dist.ProcessGroupGloo(store, rank, 2, gloo_options("127.0.0.1", LONG_S))

    other = threading.Thread(target=join, args=(1,))
    other.start()
    join(0)
    other.join()
    return GlooComm(made[0], Channels(), "pair"), made[1]


@pytest.mark.timeout(40)
@pytest.mark.parametrize("what", ["collective", "message"])
def test_after_the_first_step_an_operation_has_the_shorter_limit(what: str, tmp_path: Path) -> None:
    comm, other = _pair(tmp_path)
    groups = Groups(0, Channels())
    groups.comms["dp"] = comm
    groups.limit(SHORT_S)
    tensor = torch.zeros(4)
    ticket = comm.all_reduce(tensor) if what == "collective" else comm.recv(tensor, 1, 0)
    with pytest.raises(PeerLost):  # the test's own limit is below the longer one
        ticket.wait()
    del other


def test_before_it_the_longer_one_holds(tmp_path: Path) -> None:
    comm, other = _pair(tmp_path)
    assert comm.limit_s is None
    assert gloo_options("127.0.0.1", LONG_S)._timeout == timedelta(seconds=LONG_S)
    ticket = comm.recv(torch.zeros(4), 1, 0)
    answered = other.send([torch.ones(4)], 0, 0)  # type: ignore[attr-defined]
    ticket.wait()
    answered.wait()
