"""A level counts as raised only if it lasts: in three of five parts of its steps."""

from __future__ import annotations

import numpy as np
import pytest
from headway.health.slowness.spans import raised


@pytest.mark.parametrize(("num_windows", "is_raised"), [(2, False), (3, True)])
def test_a_level_counts_if_three_of_five_parts_reach_it(num_windows: int, is_raised: bool) -> None:
    excess = np.zeros((5, 8, 8), np.float32)
    excess[:, :, 3] = 0.04  # too little
    excess[:num_windows, :, 3] = 0.06
    excess[num_windows:, :2, 3] = 0.06  # so that the median of all steps is enough
    spans = raised(excess.reshape(40, 8))
    assert (spans.start[3], spans.end[3], spans.num_windows[3]) == (0, 40, num_windows)
    assert spans.level[3] == pytest.approx(0.06)
    assert spans.is_raised.tolist() == [False] * 3 + [is_raised] + [False] * 4
