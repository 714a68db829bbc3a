"""A cleaner of temporary files removes the sockets of a live run: ranks still recover."""

from __future__ import annotations

import shutil
import signal
from typing import Any

import pytest
from headway.common.node.process import ProcessId

NAME = "emptied"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rank_that_dies_is_replaced_twice_though_all_sockets_were_removed(machine: Any) -> None:
    """The second replacement was forked, and has connected, after the removal."""
    machine.launch(NAME, machine.two_ranks)
    before = _stepping(machine, 0)
    shutil.rmtree(machine.sock_root / machine.run_id(NAME))
    after = before
    for generation in (1, 2):
        victim = ProcessId.of(after["ranks"][1]["pid"])
        assert victim is not None and victim.kill(signal.SIGKILL)
        after = _stepping(machine, generation)
    assert after["generation"] == 2
    assert after["ranks"][0]["pid"] == before["ranks"][0]["pid"]
    assert after["services"] == before["services"]
    machine.headway("stop", NAME, "--runs-dir", machine.runs)
    machine.assert_clean(NAME)


def _stepping(machine: Any, generation: int) -> dict[str, Any]:
    """The status once this generation makes steps and has all that belongs to it."""
    step = machine.stepping(NAME, generation=generation)["step"]
    return dict(machine.stepping(NAME, step, generation=generation))
