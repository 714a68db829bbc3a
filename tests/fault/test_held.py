"""A rank that is held in a forward is the one that is ended, not the peer that waits for it."""

from __future__ import annotations

import pytest

from benchmarks import held


@pytest.mark.timeout(300)
def test_of_two_tensor_parallel_ranks_the_held_one_is_replaced() -> None:
    """A real run, since only there a peer waits in a collective inside of its own forward."""
    assert held.main(["--tp", "2", "--times", "1", "--set", "recovery.hang_act_s=3"]) == 0
