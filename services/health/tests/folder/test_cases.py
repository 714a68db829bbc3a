"""Folders after public reports of faults, each with the right answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from headway.common.errors import InputError
from headway.health.client import diagnose_folder
from headway.health.diagnosis.diagnosis import Subject

CASES = sorted((Path(__file__).parent / "cases").iterdir())
SAYS: dict[str, tuple[str, ...]] = {
    "01_missing_member": ("rank 5 never began all_reduce 2041", "shards.py:88"),
    "02_silent_gpu_in_pipeline": (
        "received micro-batch 3",
        "the device of rank 4 never began the send to rank 5",
        "the kernel log there shows nothing",
    ),
    "03_different_collectives": (
        "run different programs from operation 7219",
        "ranks 1, 2 do broadcast of 24084544 elements",
        "rank 3 does broadcast of 64 elements",
        "rank 0 is 2 operations ahead",
    ),
    "04_port_flap": ("link_downed of mlx5_3 port 1 rose by 4 there and nowhere else", "10.31.4.21"),
    "05_gpu_lost_without_xid": ("fell off the bus", "Xid 45 on gpu-c04 is the clean-up after it"),
    "06_equalised_straggler": ("rank 1 enters the collective about 199 ms after", "looks equal"),
    "07_rank_0_saves": ("rank 0 is writing a checkpoint (ckpt.py:58", "600 s"),
    "08_healthy_with_old_marks": ("nothing is wrong now", "Xid 31", "before the job was started"),
    "09_gloo_missing_member": ("rank 1 never began all_reduce 5",),
}
NEVER_SAYS: dict[str, tuple[str, ...]] = {
    "01_missing_member": ("network", "replace"),
    "03_different_collectives": ("replace", "evict", "network"),
    "04_port_flap": ("gpu-b05 flaps",),
    "06_equalised_straggler": ("network",),
    "07_rank_0_saves": ("GPU", "evict", "replace"),
    "08_healthy_with_old_marks": ("replace", "evict"),
}


def subjects(rows: list[dict[str, Any]]) -> list[Subject]:
    found = []
    for row in rows:
        gpu = row.get("gpu", "")
        found.append(
            Subject(
                row.get("rank", -1),
                row.get("node", ""),
                gpu if isinstance(gpu, str) else "",
                row.get("link", ""),
            )
        )
    return sorted(found, key=str)  # fmt: skip


def agrees(found: Subject, expected: Subject) -> bool:
    """Whether all that the answer names is found; more may be known."""
    pairs = zip(
        (found.rank, found.node, found.gpu, found.link),
        (expected.rank, expected.node, expected.gpu, expected.link),
        strict=True,
    )
    return all(own == other or other in (-1, "") for own, other in pairs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_and_the_culprits_are_right(case: Path) -> None:
    expected = json.loads((case / "expected.json").read_text())
    done = diagnose_folder(case)
    first = done.found[0]
    assert (first.kind, first.cause) == (expected["kind"], expected["cause"])
    wanted = subjects(expected["culprits"])
    assert len(first.culprits) == len(wanted)
    assert all(any(agrees(one, other) for one in first.culprits) for other in wanted)
    assert not {one.rank for one in first.culprits} & {one.rank for one in first.victims} - {-1}
    text = "\n".join(done.lines)
    assert [words for words in SAYS[case.name] if words not in text] == []
    assert [words for words in NEVER_SAYS.get(case.name, ()) if words in text] == []
    assert done.is_wrong == (expected["kind"] != "none")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_damaged_file_is_named_and_the_rest_is_judged(case: Path, tmp_path: Path) -> None:
    folder = tmp_path / "incident"
    shutil.copytree(case, folder)
    (folder / "cut.json").write_text('{"version": "2.10", "entries": [{"state": "sched')
    (folder / "core").write_bytes(bytes(range(256)) * 40)
    (folder / "empty.log").write_text("")
    done = diagnose_folder(folder)
    assert done.found[0].cause == diagnose_folder(case).found[0].cause
    assert {"core", "empty.log"} <= set(done.unread)


def test_a_folder_without_evidence_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no file"):
        diagnose_folder(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        diagnose_folder(tmp_path / "nowhere")


def test_missing_dumps_make_their_ranks_suspects_that_nothing_is_known_of(tmp_path: Path) -> None:
    case = next(one for one in CASES if one.name == "01_missing_member")
    shutil.copytree(case / "dumps", tmp_path / "dumps")
    (tmp_path / "dumps" / "nccl_trace_rank_5").unlink()
    [first] = diagnose_folder(tmp_path).found
    assert (first.cause, [one.rank for one in first.culprits]) == ("unreported", [5])
    assert first.confidence <= 0.7


def test_of_two_jobs_in_one_folder_one_is_judged_and_the_other_left_out(tmp_path: Path) -> None:
    larger = next(one for one in CASES if one.name == "01_missing_member")
    smaller = next(one for one in CASES if one.name == "09_gloo_missing_member")
    other = next(one for one in CASES if one.name == "07_rank_0_saves")
    shutil.copytree(larger, tmp_path / "monday")
    shutil.copytree(smaller, tmp_path / "sunday")
    shutil.copytree(other, tmp_path / "friday")
    (tmp_path / "friday" / "dumps" / "trace_7").unlink()
    done = diagnose_folder(tmp_path)
    assert done.found[0].as_dict() | {"evidence": []} == (
        diagnose_folder(larger).found[0].as_dict() | {"evidence": []}
    )
    assert not [name for name in done.read if not name.startswith("monday/")]
    assert (
        done.unread["friday/train.log"]
        == "from another job or time than monday; diagnose it separately"
    )
    assert done.unread["sunday/dumps/rank_1.json"].startswith("from another job")


def test_dumps_of_two_jobs_beside_each_other_are_not_mixed(tmp_path: Path) -> None:
    for case in CASES:
        if case.name in ("01_missing_member", "07_rank_0_saves"):
            for dump in (case / "dumps").iterdir():
                shutil.copy(dump, tmp_path / dump.name)
    done = diagnose_folder(tmp_path)
    assert [one.rank for one in done.found[0].culprits] == [0], "the newer one's"
    assert sum(reason.startswith("from another job") for reason in done.unread.values()) == 8


@pytest.mark.parametrize("has_older", [False, True])
def test_dumps_of_one_job_in_a_folder_a_host_stay_together(tmp_path: Path, has_older: bool) -> None:
    case = next(one for one in CASES if one.name == "01_missing_member")
    (tmp_path / "old").mkdir()
    for dump in (case / "dumps").iterdir() if has_older else ():
        value = json.loads(dump.read_text())
        (tmp_path / "old" / dump.name).write_text(json.dumps(value | {"entries": []}))
    for number, dump in enumerate(sorted((case / "dumps").iterdir())):
        (tmp_path / f"host{number // 4}").mkdir(exist_ok=True)
        shutil.copy(dump, tmp_path / f"host{number // 4}" / dump.name)
    done = diagnose_folder(tmp_path)
    assert [one.rank for one in done.found[0].culprits] == [5]
    assert len(done.unread) == 8 * has_older


def test_of_two_dumps_of_a_rank_the_newer_one_counts(tmp_path: Path) -> None:
    case = next(one for one in CASES if one.name == "01_missing_member")
    shutil.copytree(case / "dumps", tmp_path / "second")
    (tmp_path / "first").mkdir()
    for dump in (case / "dumps").iterdir():
        value = json.loads(dump.read_text())
        value["entries"] = value["entries"][:2]
        (tmp_path / "first" / dump.name).write_text(json.dumps(value))
    done = diagnose_folder(tmp_path)
    assert [one.rank for one in done.found[0].culprits] == [5]
    shutil.move(tmp_path / "first", tmp_path / "third")
    done = diagnose_folder(tmp_path)
    assert [one.rank for one in done.found[0].culprits] == [5]
    assert "another job or time than second" in done.unread["third/nccl_trace_rank_0"]


def test_culprits_of_one_node_are_said_to_be(tmp_path: Path) -> None:
    case = next(one for one in CASES if one.name == "01_missing_member")
    shutil.copytree(case / "dumps", tmp_path / "dumps")
    value = json.loads((tmp_path / "dumps" / "nccl_trace_rank_5").read_text())
    (tmp_path / "dumps" / "nccl_trace_rank_4").write_text(json.dumps(value))
    table = "".join(f"{rank} gpu-a0{rank // 4} {rank % 4}\n" for rank in range(8))
    (tmp_path / "ranks.txt").write_text("# rank host local_rank\n" + table)
    [first] = diagnose_folder(tmp_path).found
    assert [one.rank for one in first.culprits] == [4, 5]
    assert first.why[0] == "all of them are on gpu-a01"


def test_json_of_a_diagnosis_is_plain() -> None:
    done = diagnose_folder(CASES[0])
    text = json.dumps([one.as_dict() for one in done.found])
    assert json.loads(text)[0]["cause"] == "data_stall"
