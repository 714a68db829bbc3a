"""Windows of flight records: names, and records as columns that compress well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from headway.common.errors import CorruptError
from headway.common.node.event_files import (
    COLUMNS,
    WINDOW,
    earlier_files,
    event_file,
    event_files,
    from_columns,
    read_facts,
    to_columns,
)
from hypothesis import given
from hypothesis import strategies as st

TIMES = st.integers(1, (1 << 62) - 1)


@given(st.lists(st.tuples(TIMES, st.integers(0, 1 << 40), st.booleans(), TIMES, TIMES), max_size=9))
def test_records_are_the_same_after_a_round_trip(
    drawn: list[tuple[int, int, bool, int, int]],
) -> None:
    rows = np.zeros(len(drawn), WINDOW)
    for row, (start_ns, spent_ns, is_open, sequence, device) in zip(rows, drawn, strict=True):
        row["start_ns"], row["end_ns"] = start_ns, 0 if is_open else start_ns + spent_ns
        row["sequence"], row["device"] = sequence, device
        row["peer"], row["rank"], row["step"], row["nbytes"] = -1, sequence % 9, -1, device
    columns = to_columns(rows)
    assert list(columns) == list(COLUMNS)
    assert from_columns(columns).tolist() == rows.tolist()


def test_names_say_node_and_start_and_none_is_taken_twice(tmp_path: Path) -> None:
    first = event_file(tmp_path, 3, 17, ".parquet")
    first.touch()
    second = event_file(tmp_path, 3, 17, ".npy")
    second.touch()
    for other in ("n3-rank0-00000000000000000017.npy", "n3-17.npy", ".n3-x", "summary-1.parquet"):
        (tmp_path / other).touch()
    found = event_files(tmp_path)
    assert [(one.node, one.start_ns, one.is_parquet) for one in found] == [
        (3, 17, True),
        (3, 18, False),
    ]
    assert event_files(tmp_path, node=4) == []
    assert [path.name for path in earlier_files(tmp_path, 3)] == [
        "n3-rank0-00000000000000000017.npy"
    ]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{}",
        "[1]",
        '{"node": 0, "boot_id": "", "start_ns": -1, "end_ns": 0, "ranks": {}}',
        '{"node": 0, "boot_id": "", "start_ns": 0, "end_ns": 9223372036854775808, "ranks": {}}',
        '{"node": 0, "boot_id": "", "start_ns": 0, "end_ns": 0, "ranks": {"x": {}}}',
    ],
)
def test_facts_that_are_none_name_the_file(text: str | None) -> None:
    with pytest.raises(CorruptError, match=r"window\.parquet"):
        read_facts(Path("window.parquet"), text)
