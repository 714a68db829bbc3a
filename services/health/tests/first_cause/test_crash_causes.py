"""The end of a process takes the cause that its machine or its own last words show."""

from __future__ import annotations

import pytest
from headway.common.wire.messages.health import Finding, Verdict
from headway.health.client import response

from services.health.tests.first_cause.played import (
    GPU,
    Played,
    line,
    lost_gpu,
    oom_kill,
    rows,
)


def crash_of(played: Played) -> Verdict:
    (crash,) = [one for one in played.newest().values() if one.kind == "crash"]
    return crash


@pytest.mark.parametrize("found_first", [True, False])
def test_an_oom_kill_is_out_of_memory_of_the_rank_whose_pid_it_names(found_first: bool) -> None:
    played = Played()
    if found_first:
        played.find(1, oom_kill(1002, group=True))
        played.run(1.0)
    played.end(2)
    played.end(5)
    played.run(1.0)
    if not found_first:
        played.find(1, oom_kill(1002, group=True, age_s=1.0))
        played.run(1.0)
    by_rank = {one.rank: one for one in played.open() if one.kind == "crash"}
    assert by_rank[2].cause == "out_of_memory" and by_rank[5].cause == "unknown"
    assert by_rank[2].subject == "rank", "the limit of its own group"
    (row,) = rows(by_rank[2], "because")
    assert row.startswith("Memory cgroup out of memory: Killed process 1002")
    assert response(by_rank[2]) == "replace_worker", "a restart in place"
    assert [one.kind for one in played.open()] == ["crash", "crash"], "one verdict for each end"
    newest = {one.kind: one for one in played.newest().values()}
    assert ("out_of_memory" in newest) == found_first
    if found_first:
        assert not newest["out_of_memory"].is_open
        assert rows(newest["out_of_memory"], "part_of") == [f"{by_rank[2].id} (crash)"]
    assert len(rows(by_rank[2], "at")) == 1, "a restarted monitor does not read the line again"


def test_the_kill_of_another_program_before_stays_a_verdict_of_its_own() -> None:
    played = Played()
    played.find(1, oom_kill(77))
    played.run(1.0)
    played.end(2)
    played.find(1, oom_kill(1002))
    played.run(1.0)
    assert sorted(one.kind for one in played.open()) == ["crash", "out_of_memory"]
    assert crash_of(played).cause == "out_of_memory"


def test_a_host_without_memory_is_at_fault_itself() -> None:
    played = Played()
    played.end(2)
    played.find(1, oom_kill(1002))
    played.run()
    assert (crash_of(played).subject, crash_of(played).cause) == ("node", "out_of_memory")


def test_a_process_that_the_kernel_killed_for_memory_is_not_another_rank() -> None:
    played = Played()
    played.find(1, oom_kill(1003))
    played.end(2)
    played.run()
    assert crash_of(played).cause == "unknown"


@pytest.mark.parametrize("pid", ["1002", "'<unknown>'"])
@pytest.mark.parametrize("age_s", [20.0, 0.0])
def test_a_lost_gpu_costs_the_node_of_the_rank_that_ended_by_it(pid: str, age_s: float) -> None:
    played = Played()
    played.run(20.0)
    played.end(2)
    played.find(1, lost_gpu(pid, age_s=age_s))
    played.run()
    crash = crash_of(played)
    assert (crash.cause, crash.subject, crash.name) == ("gpu_lost", "gpu", GPU)
    assert response(crash) == "replace_node" and crash.node == 1
    assert GPU in crash.remedy and crash.confidence >= 0.9
    assert crash.unix_s - crash.since_unix_s >= age_s - 0.5, "the trouble began with the GPU"


def test_a_gpu_that_was_lost_on_another_node_or_long_ago_explains_nothing() -> None:
    played = Played()
    played.find(0, lost_gpu())
    played.run(1.0)
    played.end(2)
    played.run()
    assert (crash_of(played).cause, response(crash_of(played))) == ("unknown", "replace_worker")
    old = Played()
    old.find(1, lost_gpu())
    old.run(70.0)
    old.end(2)
    old.run()
    assert crash_of(old).cause == "unknown"


@pytest.mark.parametrize(
    ("reason", "cause", "subject"),
    [
        ("ValueError: bad shard [data.py:88 < loop.py:12]", "program_error", "program"),
        (
            "OutOfMemoryError: CUDA out of memory. Tried to [a.py:1]",
            "out_of_memory",
            "rank",
        ),
        ("OSError: [Errno 5] Input/output error: '/mnt/a' [b.py:2]", "disk_fault", "rank"),
        ("RuntimeError: CUDA error: an illegal memory access [c.py:3]", "gpu_fault", "rank"),
        ("RuntimeError: CUDA error: device-side assert triggered", "program_error", "program"),
    ],
)
def test_last_words_say_why(reason: str, cause: str, subject: str) -> None:
    played = Played()
    played.end(3, reason)
    (crash,) = played.run()
    assert (crash.cause, crash.subject, crash.rank) == (cause, subject, 3)
    assert rows(crash, "last_words") == [reason]
    assert response(crash) == "replace_worker"


def test_an_error_of_the_program_is_not_blamed_on_a_gpu_of_its_node() -> None:
    played = Played()
    played.find(1, lost_gpu())
    played.end(2, "ValueError: bad shard [data.py:88]")
    played.run()
    assert crash_of(played).cause == "program_error"


def test_a_port_that_is_down_is_why_a_rank_of_its_node_lost_all_others() -> None:
    played = Played(num_nodes=2)
    down = line("nic_down", "mlx5_3 port 1 is down", source="nic", subject="nic", name="mlx5_3/1")
    played.find(0, down)
    played.end(0, "RuntimeError: NCCL error: remote process exited or there was a network error")
    played.run()
    crash = crash_of(played)
    assert (crash.cause, crash.subject, crash.name) == ("link_fault", "nic", "mlx5_3/1")
    assert response(crash) == "replace_worker", "not certain enough for the node"


def uncorrectable(pid: int) -> Finding:
    text = f"Memory failure: 0x3c1f2a: Sending SIGBUS to python3:{pid} due to hardware memory"
    return line("memory_uncorrected", text)


def test_memory_that_failed_beyond_correction_costs_the_node_if_it_names_the_process() -> None:
    for pid, action in ((1002, "replace_node"), (77, "replace_worker")):
        played = Played()
        played.end(2)
        played.find(1, uncorrectable(pid))
        played.run()
        assert crash_of(played).cause == "memory_fault"
        assert response(crash_of(played)) == action


def test_what_is_found_after_the_rank_is_back_completes_the_verdict_and_costs_nothing() -> None:
    played = Played()
    played.end(2)
    played.run()
    for node in played.nodes:
        node.generation = 1
    played.node_of(2).states.pop(2)
    played.node_of(2).signals[2] = {"pid": 4711}
    played.run(1.0)
    played.find(1, lost_gpu("1002", age_s=1.5))
    played.run()
    crash = crash_of(played)
    assert not crash.is_open and crash.cause == "gpu_lost" and crash.action == "replace_worker"
