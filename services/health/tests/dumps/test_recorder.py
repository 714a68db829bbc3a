"""Dumps of torch's flight recorder, in the forms that versions of it and of NCCL write."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from headway.health.diagnosis.mismatch import find_mismatch
from headway.health.diagnosis.wait_for import find_holdups
from headway.health.dumps.recorded_scene import scene_of
from headway.health.dumps.recorder import Dump, DumpError, read_dump
from headway.health.dumps.same_names import apart
from hypothesis import given
from hypothesis import strategies as st

EVERYBODY = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}


def entry(order: int, sequence: int, state: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "record_id": order, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence, "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 10**18 + order, "input_sizes": [[2, 8]], "state": state,
        "time_discovered_started_ns": None, "timeout_ms": 600_000, **more,
    }  # fmt: skip


def write(folder: Path, rank: int, entries: list[dict[str, Any]], **more: Any) -> Path:
    path = folder / f"nccl_trace_rank_{rank}"
    value = {"version": "2.10", "pg_config": EVERYBODY, "entries": entries, **more}
    path.write_bytes(pickle.dumps(value))
    return path


def read(folder: Path) -> list[Dump]:
    return [read_dump(path) for path in sorted(folder.iterdir())]


def named(folder: Path) -> list[tuple[str, tuple[int, ...], int]]:
    return [(one.kind, one.ranks, one.sequence) for one in find_holdups(scene_of(read(folder)))]


def test_the_rank_that_never_began_a_collective_is_named(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        last = [entry(2, 41, "scheduled")] if rank != 1 else []
        write(tmp_path, rank, [entry(1, 40), *last])
    assert named(tmp_path) == [("missing", (1,), 41)]


def test_gloo_never_records_an_end(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        entries = [
            entry(n, n, "scheduled", profiling_name="gloo:all_reduce")
            for n in range(1, 6 - (rank == 2))
        ]
        path = tmp_path / f"rank_{rank}.json"
        path.write_text(json.dumps({"version": "2.10", "entries": entries}))
    assert named(tmp_path) == [("missing", (2,), 5)]


def test_ranks_that_give_one_collective_tensors_of_different_types_are_named(
    tmp_path: Path,
) -> None:
    for rank in (0, 1, 2):
        dtype = "Float" if rank == 2 else "BFloat16"
        entries = [entry(1, 40), entry(2, 41, "scheduled", input_dtypes=[dtype])]
        write(tmp_path, rank, entries)
    found = find_mismatch(scene_of(read(tmp_path)))
    assert found is not None
    assert str(found).endswith(
        "from 41 of 0 on: ranks 0, 1 all_reduce of 16 elements of type BFloat16, "
        "rank 2 all_reduce of 16 elements of type Float"
    )


def test_types_that_are_not_recorded_are_compared_with_nothing(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        more = {"input_dtypes": ["Float"]} if rank == 2 else {}
        write(tmp_path, rank, [entry(1, 40), entry(2, 41, "scheduled", **more)])
    assert find_mismatch(scene_of(read(tmp_path))) is None


@pytest.mark.parametrize("is_whole", [True, False])
def test_groups_of_one_name_on_different_ranks_are_kept_apart(
    tmp_path: Path, is_whole: bool
) -> None:
    """Ranks 2 and 3 are further in their group 1 than ranks 0 and 1 in theirs, which is healthy."""
    group = {"pg_id": 1, "process_group": ("1", "undefined")}
    for rank in range(4):
        pair = [0, 1] if rank < 2 else [2, 3]
        last = 41 if rank < 2 else 57
        is_late = rank == 1 and not is_whole
        entries = [
            entry(number, number, "completed" if number < last else "scheduled", **group)
            for number in range(35, last + 1)
        ]
        config = {"1": {"name": "1", "desc": "undefined", "ranks": str(pair)}}
        write(tmp_path, rank, entries[: -1 if is_late else None], pg_config=config)
    found = find_holdups(scene_of(apart(read(tmp_path))))
    missing = [(one.ranks, one.group, one.sequence) for one in found if one.kind == "missing"]
    assert missing == ([] if is_whole else [((1,), "1 of rank 0", 41)])


def test_a_device_that_has_not_begun_is_told_from_those_that_wait(tmp_path: Path) -> None:
    group = {"pg_id": 1, "process_group": ("1", "pipeline"), "is_p2p": True}
    config = {"1": {"name": "1", "desc": "pipeline", "ranks": "[0, 1, 2]"}}
    begun = {"time_discovered_started_ns": 10**18}

    def message(order: int, name: str, state: str, **more: Any) -> dict[str, Any]:
        return entry(order, 0, state, profiling_name=f"nccl:{name}", **group, **more)

    write(
        tmp_path,
        0,
        [
            message(1, "send 0->1", "completed", **begun),
            message(2, "send 0->1", "started", **begun),
        ],
        pg_config=config,
    )
    write(
        tmp_path,
        1,
        [
            message(1, "recv 1<-0", "completed", **begun),
            message(2, "send 1->2", "scheduled"),
            message(3, "recv 1<-0", "scheduled"),
        ],
        pg_config=config,
    )
    write(tmp_path, 2, [message(1, "recv 2<-1", "started", **begun)], pg_config=config)  # fmt: skip
    assert {(kind, ranks) for kind, ranks, _ in named(tmp_path)} == {("device", (1,))}


def batch(order: int, number: int, state: str, *names: str) -> list[dict[str, Any]]:
    """As NCCL's recorder writes ``batch_isend_irecv``: the state of the parts never changes."""
    end = {"profiling_name": "nccl:coalesced", "input_sizes": []}
    rows = [{"profiling_name": f"nccl:{name}"} for name in names]
    return [
        entry(
            order + n, 0, state if row is end else "scheduled",
            is_p2p=True, p2p_seq_id=number, **row,
        )
        for n, row in enumerate([*rows, end])
    ]  # fmt: skip


def test_messages_of_a_batch_are_over_when_its_end_is(tmp_path: Path) -> None:
    write(tmp_path, 0, batch(1, 1, "completed", "send 0->1", "recv 0<-1"))
    write(tmp_path, 1, batch(1, 1, "completed", "recv 1<-0", "send 1->0"))
    write(tmp_path, 2, [])
    assert named(tmp_path) == []


def test_the_rank_that_never_posted_its_batch_is_named(tmp_path: Path) -> None:
    write(
        tmp_path, 0,
        batch(1, 1, "completed", "send 0->1", "recv 0<-1")
        + batch(4, 2, "started", "send 0->1", "recv 0<-1"),
    )  # fmt: skip
    write(tmp_path, 1, batch(1, 1, "completed", "recv 1<-0", "send 1->0"))
    write(tmp_path, 2, [])
    assert {(kind, ranks) for kind, ranks, _ in named(tmp_path)} == {("missing", (1,))}


def test_collectives_of_a_batch_are_one_with_the_state_of_its_end(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        parts = [entry(n, 40, "scheduled", profiling_name="nccl:all_gather") for n in (1, 2)]
        end = entry(3, 40, "completed", profiling_name="nccl:ALLGATHER_coalesced")
        write(tmp_path, rank, [*parts, end])
    assert named(tmp_path) == []


def test_a_healthy_job_has_no_holdup(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        write(tmp_path, rank, [entry(1, 40), entry(2, 41)])
    assert named(tmp_path) == []


def test_another_operation_under_the_same_number_is_a_mismatch(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        name = "nccl:broadcast" if rank == 2 else "nccl:all_reduce"
        write(tmp_path, rank, [entry(1, 40, "scheduled", profiling_name=name)])
    found = find_mismatch(scene_of(read(tmp_path)))
    assert found is not None and found.sequence == 40
    assert [(str(one), ranks) for one, ranks in found.sides] == [
        ("all_reduce of 16 elements", (0, 1)),
        ("broadcast of 16 elements", (2,)),
    ]


def test_members_of_an_all_to_all_may_have_sizes_of_their_own(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        sizes = {"profiling_name": "nccl:all_to_all", "input_sizes": [[rank + 1, 4]]}
        write(tmp_path, rank, [entry(1, 40, "scheduled", **sizes)])
    assert find_mismatch(scene_of(read(tmp_path))) is None


def test_a_status_tells_what_the_ring_no_longer_has(tmp_path: Path) -> None:
    """Rank 1 has finished 41, which is not in its ring; the others' devices have not."""
    status = {"0": {"last_enqueued_collective": 41, "last_completed_collective": 41}}
    for rank in (0, 2):
        write(tmp_path, rank, [entry(1, 41, "scheduled")])
    write(tmp_path, 1, [], pg_status=status)
    assert named(tmp_path) == [("device", (0, 2), 41)]


def test_groups_of_one_description_keep_their_own_status(tmp_path: Path) -> None:
    """Two tp and two dp groups, none with a description; rank 3 never entered 6 of either."""
    members = {"1": "[0, 1]", "2": "[2, 3]", "3": "[0, 2]", "4": "[1, 3]"}
    config = {name: {"desc": "undefined", "ranks": ranks} for name, ranks in members.items()}
    groups = {0: ("1", "3"), 1: ("1", "4"), 2: ("2", "3"), 3: ("2", "4")}
    for rank, (tp, dp) in groups.items():
        last = 5 if rank == 3 else 6
        entries = []
        for order, (place, name) in enumerate([(0, tp), (1, dp)]):
            is_held = rank != 3 and name == groups[3][place]
            state = "scheduled" if is_held else "completed"
            group = (name, "undefined")
            entries.append(entry(order, last, state, pg_id=place, process_group=group))
        status = {str(place): {"last_enqueued_collective": last, "last_completed_collective": 5}
                  for place in (0, 1)}  # fmt: skip
        write(tmp_path, rank, entries, pg_config=config, pg_status=status)
    assert {ranks for _, ranks, _ in named(tmp_path)} == {(3,)}


class _Call:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("a dump must not run anything",))


def _nested(depth: int) -> list[Any]:
    """Lists in each other."""
    return [_nested(depth - 1)] if depth else []


def _shared(depth: int) -> list[Any]:
    """A few bytes that are 2 to the power of ``depth`` items when written out."""
    value: list[Any] = [1]
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"entries": [_Call()]}), "asks for the class builtins.print"),
        (b"\x80\x02}r\x00\x00\x00\x60.", "takes more memory"),
        (b"", "neither JSON nor a pickle"),
        (b'{"entries": [', "neither JSON nor a pickle"),
        (pickle.dumps({"entries": [{"state": "x"}]}), "no known version"),
        (pickle.dumps([1, 2]), "no list of entries"),
        (b'{"entries": [{"profiling_name": "nccl:x", "collective_seq_id": Infinity}]}', "version"),
        (pickle.dumps({"entries": [entry(1, 10**30)]}), "no known version"),
        (pickle.dumps({"entries": [entry(1, 2, input_sizes=[[10**3000] * 9])]}), "no known"),
        (pickle.dumps({"entries": [entry(1, 2, profiling_name=_nested(200))]}), "a name of type"),
        (pickle.dumps({"entries": [], "pg_config": {"0": {"ranks": _shared(40)}}}), "not ranks"),
        (b'{"entries": [], "pg_config": {"0": {"ranks": "[1, [2]]"}}}', "not ranks"),
        (b'{"entries": [], "rank": 20261127}', "is it a date"),
    ],
    ids=[
        "class",
        "memo",
        "empty",
        "cut",
        "entry",
        "other",
        "infinite",
        "huge",
        "size",
        "nested",
        "shared",
        "members",
        "date",
    ],
)
def test_what_is_no_dump_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    path = tmp_path / "trace_3"
    path.write_bytes(content)
    with pytest.raises(DumpError, match=words):
        read_dump(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nccl_trace_rank_5", (5, "")),
        ("nccl_trace_rank_gpu-a02_4", (4, "gpu-a02")),
        ("_dump_12", (12, "")),
        ("trace_7", (7, "")),
        ("rank_0.json", (0, "")),
        ("host17_rank3.pickle", (3, "host17")),
    ],
)
def test_the_name_of_a_dump_tells_its_rank(
    tmp_path: Path, name: str, expected: tuple[int, str]
) -> None:
    (tmp_path / name).write_bytes(pickle.dumps({"entries": []}))
    dump = read_dump(tmp_path / name)
    assert (dump.rank, dump.host) == expected


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "trace_0"
    path.write_bytes(data)
    with pytest.raises(DumpError):
        read_dump(path)
