"""What follows from another rank's end is a row of that rank's verdict, and accuses nobody."""

from __future__ import annotations

from headway.health.first_cause.outlet import MAX_ROWS
from headway.health.first_cause.victims import WAIT_S

from services.health.tests.first_cause.played import Played, closed_by_peer, line, lost_gpu, rows


def test_lines_that_come_after_the_end_are_rows_of_it() -> None:
    played = Played()
    played.end(0)
    (crash,) = played.run()
    played.find(1, closed_by_peer(2), closed_by_peer(3))
    played.find(2, closed_by_peer(4))
    reported = played.run(2 * WAIT_S)
    assert {one.id for one in reported} == {crash.id}
    (verdict,) = played.open()
    victims = rows(verdict, "victim")
    assert [text.split(":")[0] for text in victims] == [
        "rank 2 on node 1", "rank 3 on node 1", "rank 4 on node 2",
    ]  # fmt: skip
    assert (verdict.rank, verdict.kind, verdict.action) == (0, "crash", "replace_worker")


def test_lines_that_come_before_the_end_wait_for_it() -> None:
    played = Played()
    played.find(1, closed_by_peer(2))
    assert played.run(1.0) == []
    played.end(0)
    played.run(2 * WAIT_S)
    (verdict,) = played.newest().values()
    assert verdict.rank == 0 and len(rows(verdict, "victim")) == 1


def test_without_a_culprit_one_verdict_names_nobody() -> None:
    played = Played()
    played.find(1, closed_by_peer(2))
    played.find(3, closed_by_peer(6))
    assert played.run(WAIT_S - 1.0) == []
    played.run(3.0)
    (verdict,) = played.open()
    assert (verdict.kind, verdict.rank, verdict.node) == ("peer_lost", -1, -1)
    assert verdict.confidence < 0.5 and verdict.action == "observe"
    assert len(rows(verdict, "victim")) == 2
    played.run(90.0)
    assert played.open() == [], "it ends with the last line"


def test_a_culprit_that_is_known_later_takes_what_named_nobody() -> None:
    played = Played()
    played.find(1, closed_by_peer(2))
    played.run(2 * WAIT_S)
    (uncertain,) = played.open()
    played.find(0, lost_gpu(age_s=9.5))
    played.run(10.0)
    (verdict,) = played.open()
    assert verdict.kind == "gpu_fault" and len(rows(verdict, "victim")) == 1
    assert not played.newest()[uncertain.id].is_open


def test_a_rank_that_ends_by_the_end_of_another_is_a_row_of_it_in_either_order() -> None:
    for culprit_first in (True, False):
        played = Played()
        ends = [(0, None), (5, "DistBackendError: NCCL error: remote process exited")]
        for rank, reason in ends if culprit_first else reversed(ends):
            played.end(rank, reason)
            played.run(1.0)
        played.run(2.0)
        (verdict,) = played.open()
        assert verdict.rank == 0, f"culprit first: {culprit_first}"
        (row,) = rows(verdict, "victim")
        assert row.startswith("rank 5 on node 2 has ended: DistBackendError")


def test_a_rank_that_its_watchdog_ended_has_said_so_in_its_log() -> None:
    """An abort leaves no last words."""
    played = Played()
    played.end(0)
    played.run(3.0)
    played.end(4)
    played.find(2, closed_by_peer(4))
    played.run(2.0)
    assert [one.rank for one in played.open()] == [0]


def test_a_rank_that_only_lost_others_is_replaced_and_accused_of_nothing() -> None:
    played = Played()
    played.end(5, "RuntimeError: Connection closed by peer [127.0.0.1]:2807")
    played.run(2 * WAIT_S)
    (verdict,) = played.open()
    assert (verdict.action, verdict.cause) == ("replace_worker", "unknown")
    assert verdict.alternatives == (("another rank or the network failed first", 0.7),)


def test_late_lines_of_a_recovery_that_is_over_are_rows_of_the_verdict_that_has_closed() -> None:
    played = Played()
    played.end(0)
    (crash,) = played.run()
    for node in played.nodes:
        node.generation = 1
    played.node_of(0).states.pop(0)
    played.node_of(0).signals[0] = {"pid": 4711}
    played.run(1.0)
    assert played.open() == []
    played.find(3, closed_by_peer(7, age_s=1.0))
    played.run(2 * WAIT_S)
    assert set(played.newest()) == {crash.id}
    assert len(rows(played.newest()[crash.id], "victim")) == 1 and played.open() == []


def test_the_cleanup_of_a_gpu_after_an_end_is_a_row_of_it() -> None:
    played = Played()
    played.end(0)
    played.run()
    for _ in range(4):  # alone it would be a verdict of its own from the third on
        text = "NVRM: Xid (PCI:0000:3b:00): 45, pid=1001, Ch 00000008"
        played.find(1, line("xid_45", text, subject="gpu", name="0000:3b:00.0"))
        played.run(1.0)
    (verdict,) = played.open()
    assert rows(verdict, "victim")[0].startswith("node 1: NVRM: Xid")


def test_of_very_many_victims_some_are_listed() -> None:
    played = Played(num_nodes=4, ranks_per_node=16)
    played.end(0)
    played.run()
    for node in range(1, 4):
        played.find(node, *(closed_by_peer(rank) for rank in range(16 * node, 16 * node + 16)))
    played.run(2 * WAIT_S)
    (verdict,) = played.newest().values()
    assert len(rows(verdict, "victim")) == MAX_ROWS


def test_an_answer_counts_although_a_victim_was_added_meanwhile() -> None:
    from headway.common.wire.messages.health import VerdictTaken

    played = Played()
    played.end(0)
    (crash,) = played.run()
    played.find(1, closed_by_peer(2))
    (further,) = played.run()
    assert further.revision > crash.revision
    answer = VerdictTaken(id=crash.id, revision=crash.revision, taken="replaced the worker")
    (answered,) = played.state.on_taken(answer, played.now_s)
    assert answered.taken == "replaced the worker"


def test_a_restarted_monitor_keeps_its_verdicts_and_adds_to_them() -> None:
    played, second = Played(), Played()
    played.end(0)
    second.state.restore(played.run())
    second.end(0)
    second.find(1, closed_by_peer(2))
    (verdict,) = second.run()
    assert verdict.rank == 0 and len(rows(verdict, "victim")) == 1
