"""Only a counter that rises is progress; a process that is started again and again makes none."""

from __future__ import annotations

from itertools import cycle, islice

import pytest
from headway.common.polling import HighWater


def test_only_values_above_the_highest_are_progress() -> None:
    mark = HighWater()
    assert [mark.rises(value) for value in (0, 0, 3, 3, 4)] == [True, False, True, False, True]


def test_a_process_that_was_started_again_may_begin_anew() -> None:
    mark = HighWater()
    assert [mark.rises(value) for value in (1000, 0, 0, 5)] == [True, True, False, True]


@pytest.mark.parametrize("period", [(0, 3, 6), (6, 0), (5, 4, 3)])
def test_a_process_that_ends_again_and_again_is_no_progress_in_the_end(
    period: tuple[int, ...],
) -> None:
    mark = HighWater()
    rises = [mark.rises(value) for value in islice(cycle(period), 60)]
    assert sum(rises) <= 4 * len(period) and not any(rises[-30:])
    assert mark.rises(7), "what it never reached before is"
