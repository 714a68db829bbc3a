"""A fixed part of ``make campaign``: nobody is wrongly named, and every culprit that can be is."""

from __future__ import annotations

import pytest

from benchmarks.campaign.clean import judge_clean
from benchmarks.campaign.judged import judge_scene
from benchmarks.campaign.live import judge_live
from benchmarks.campaign.outcome import Outcome

SCENES = range(40)
LIVE = (2, 12, 16, 18, 20, 22, 27, 36, 39, 77, 97, 116, 118, 122, 131, 157)
"""Traces of most kinds, on CPUs and GPUs; among them those that were once judged wrong."""


def check(found: Outcome) -> None:
    """Whatever could be known must be found, and no innocent may be named in any case."""
    assert not found.innocents and not found.killed, found
    assert (found.is_right_class and found.is_exact) or not found.can_be_known, found


@pytest.mark.parametrize("seed", SCENES)
def test_the_graph_finds_the_culprits_of_a_played_run(seed: int) -> None:
    check(judge_scene(seed, 24))


@pytest.mark.parametrize("seed", LIVE)
def test_a_monitor_finds_the_culprits_of_a_played_run(seed: int) -> None:
    check(judge_live(seed, 16))


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_said_of_a_healthy_run_that_pauses(seed: int) -> None:
    found = judge_clean(seed, 6)
    assert found.num_pauses > 0 and found.said == ()
