"""From which copy of the state a generation starts: never from a bad one, never over."""

from __future__ import annotations

import pytest
from headway.common.decide import Done, Log
from headway.common.wire.messages.driver import Seals
from headway.common.wire.messages.worker import Restore
from headway.controller.decisions.events import (
    BeginGeneration,
    DurableFound,
    FindDurable,
    Finish,
    Remember,
)
from headway.controller.decisions.restore import Copies, choose_restore
from headway.testkit.simulation.by_hand import Hand, events, only
from headway.testkit.simulation.driver import LIMITS


def test_a_bad_copy_that_is_found_after_a_peers_report_is_no_failure_of_the_code() -> None:
    hand = _from_arena()
    hand.send(hand.left(0, "peer", detail="connection reset"))
    found = only(hand.send(hand.left(1, bad_snapshot=True, detail="arena-1.bin: digest")), Log)
    assert found.event == "snapshot_damaged"
    assert (found.fields["node"], found.fields["rank"]) == (0, 1)


def _from_arena() -> Hand:
    """A run that lost a peer and restored the snapshot of step 8."""
    hand = Hand().run(8)
    hand.send(hand.left(0, "peer"))
    hand.leave()
    hand.read(7, 8)
    hand.begin(hand.send(DurableFound((5, "f"))))
    return hand


def _from_durable(step: int, folder: str = "f") -> Hand:
    """A run that restored a checkpoint."""
    hand = Hand()
    hand.gather()
    hand.read()
    hand.begin(hand.send(DurableFound((step, folder))))
    hand.join(step + 1)
    return hand


def _condemn(hand: Hand, step: int = 6, folder: str = "f") -> None:
    """Rank 1 cannot read its part, and neither can the second reader."""
    hand.send(hand.left(1, detail="BadCheckpointError", bad_checkpoint=True))
    hand.leave()
    hand.read()
    hand.begin(hand.send(DurableFound((step, folder))))
    hand.join(step, status="joining")
    hand.send(hand.left(2, bad_checkpoint=True, bad_part=1))


def test_one_reader_condemns_no_checkpoint_and_a_second_one_is_named() -> None:
    hand = _from_durable(6)
    hand.send(hand.left(1, detail="it is missing", bad_checkpoint=True))
    assert hand.state.memory.bad_checkpoints == ()
    hand.leave()
    assert only(hand.read(), FindDurable) == FindDurable((), marked=0)
    hand.begin(hand.send(DurableFound((6, "f"))))
    restore = hand.state.restore
    assert (restore.step, restore.doubted, restore.reader) == (6, 1, 2)
    hand.join(7)  # this time every rank can read its part
    hand.send(hand.left(0, "peer"))
    hand.leave()
    hand.read()
    hand.begin(hand.send(DurableFound((6, "f"))))
    assert hand.state.restore.reader == -1, "the doubt outlived a generation that restored"


def test_one_rank_that_never_reads_its_part_counts_as_failing_and_condemns_nothing() -> None:
    hand = _from_durable(6)
    for _ in range(3):
        hand.send(hand.left(1, detail="rank 1 on node 1", bad_checkpoint=True))
        hand.leave()
        hand.read()
        actions = hand.send(DurableFound((6, "f")))
        while not any(isinstance(action, BeginGeneration) for action in actions):
            actions = hand.wait(0.1)  # the pause after the same failure at the same step
        hand.begin(actions)
        hand.join(6, status="joining")
    assert ("rank 1 on node 1", 6, 3) in hand.state.memory.crashes
    assert hand.state.memory.bad_checkpoints == ()


def test_two_readers_that_agree_condemn_a_checkpoint() -> None:
    hand = _from_durable(6)
    _condemn(hand)
    assert hand.state.memory.bad_checkpoints == (6,)


def test_the_second_reader_is_on_another_node_if_there_is_one() -> None:
    doubted = Restore(source="durable", step=6, folder="f")
    for nodes, part, reader in (
        ({0: 0, 1: 0, 2: 1, 3: 1}, 3, 0),
        ({0: 0, 1: 0, 2: 1, 3: 1}, 0, 2),
        ({0: 0, 1: 0}, 0, 1),
        ({0: 0}, 0, 0),
    ):
        copies = Copies()
        assert not copies.unreadable(3, doubted, part, part)
        again = copies.with_reader(doubted, nodes)
        assert (again.doubted, again.reader) == (part, reader)
        assert copies.with_reader(Restore(source="durable", step=5), nodes).reader == -1
        assert copies.unreadable(4, again, reader, part)
        assert copies.bad_checkpoints == {6}


def test_a_corrupt_checkpoint_is_passed_over_also_when_a_survivor_reported_first() -> None:
    hand = _from_durable(6)
    hand.send(hand.left(0, "peer", detail="connection reset"))
    hand.send(hand.left(1, detail="BadCheckpointError", bad_checkpoint=True))
    hand.leave()
    hand.read()
    hand.begin(hand.send(DurableFound((6, "f"))))
    hand.join(6, status="joining")
    hand.send(hand.left(1, "peer", detail="connection reset"))
    hand.send(hand.left(2, bad_checkpoint=True, bad_part=1))
    assert hand.state.memory.bad_checkpoints == (6,)
    hand.leave()
    assert only(hand.read(), FindDurable) == FindDurable((6,), marked=1)
    # the answer to an older question must not bring the bad one back
    assert not [a for a in hand.send(DurableFound((6, "f"))) if isinstance(a, BeginGeneration)]
    begin = only(hand.send(DurableFound((4, "g"))), BeginGeneration)
    assert begin.restored_step == 4
    crashes = [crash for crash in hand.state.memory.crashes if crash[1] == 4]
    assert crashes == [("", 4, 1)], "it counted as a crash of the code"


def test_damaged_data_after_a_durable_restore_do_not_make_the_checkpoint_bad() -> None:
    hand = _from_durable(6)
    hand.send(hand.left(1, detail="CorruptError: train.bin: sequence 7 holds token 70000"))
    assert hand.state.memory.bad_checkpoints == ()


def test_a_bad_checkpoint_is_barred_until_a_generation_that_restarts_before_it_is_recorded() -> (
    None
):
    hand = _from_durable(6)
    _condemn(hand)
    hand.leave()
    hand.read()
    begin = only(hand.send(DurableFound((4, "g"))), BeginGeneration)
    assert hand.state.memory.bad_checkpoints == (6,)
    hand.send(Done(begin))
    assert hand.state.memory.bad_checkpoints == (), (
        "one of this step that is written now is another"
    )


def test_a_bad_checkpoint_stays_barred_while_the_run_restarts_beyond_it_but_newer_ones_count() -> (
    None
):
    hand = _from_durable(6)
    _condemn(hand)
    hand.leave()
    hand.begin(hand.read(8) + hand.send(DurableFound(None)))
    hand.join(9)
    assert hand.state.memory.bad_checkpoints == (6,)
    hand.send(hand.left(1))
    hand.leave()
    assert only(hand.read(), FindDurable) == FindDurable((6,), marked=2)
    assert only(hand.send(DurableFound((10, "h"))), BeginGeneration).restored_step == 10


def test_a_run_whose_checkpoints_are_all_damaged_ends_by_name_and_never_starts_over() -> None:
    hand = _from_durable(6)
    _condemn(hand)
    hand.leave()
    hand.read()
    finish = only(hand.send(DurableFound(None)), Finish)
    assert finish.outcome == "failed"
    assert finish.detail.startswith(
        "no node has a usable snapshot and every checkpoint is damaged (step 6); "
    )


def test_a_run_that_starts_over_because_it_has_no_checkpoint_yet_says_so_aloud() -> None:
    hand = Hand()
    hand.gather()
    hand.read()
    assert "started_over" not in events(hand.begin(hand.send(DurableFound(None))))
    hand.join(3)
    hand.send(hand.left(1))
    hand.leave()
    assert only(hand.read(), FindDurable).marked == 0
    assert "started_over" in events(hand.begin(hand.send(DurableFound(None))))


def test_a_snapshot_with_a_wrong_digest_is_never_restored_again_and_the_next_good_copy_is() -> None:
    hand = _from_arena()
    assert hand.state.restore == Restore(source="arena", step=8)
    actions = hand.send(hand.left(1, bad_snapshot=True, detail="arena-1.bin: wrong digest"))
    assert only(actions, Remember).memory.bad_snapshots == ((1, 8),)
    hand.leave()
    hand.read(7, 8)
    begin = only(hand.send(DurableFound((5, "f"))), BeginGeneration)
    assert begin.restored_step == 7
    assert not [
        signature for signature, step, _ in hand.state.memory.crashes if "digest" in signature
    ]
    hand.begin([begin])
    hand.join(8)
    assert hand.state.memory.bad_snapshots == (), "the slot has been written anew"


def test_a_damaged_arena_is_named_and_counts_as_absent() -> None:
    hand = Hand().run(8)
    hand.send(hand.left(0, "peer"))
    hand.leave()
    damaged = Seals(
        node=0, generation=0, sealed={0: (8,), 1: (8,)}, damaged={1: "arena-1.bin: bad magic"}
    )
    log = only(hand.send(damaged), Log)
    assert (log.event, log.fields["reason"]) == ("snapshot_damaged", "arena-1.bin: bad magic")
    hand.send(Seals(node=1, generation=0, sealed={2: (8,), 3: (8,)}))
    assert only(hand.send(DurableFound((5, "f"))), BeginGeneration).restored_step == 5


def test_the_restore_point_is_the_newest_step_that_every_rank_holds() -> None:
    assert choose_restore(range(2), {0: (4, 5), 1: (5, 6)}, None) == Restore(source="arena", step=5)
    assert choose_restore(range(2), {0: (4, 5)}, (3, "f")) == Restore(
        source="durable", step=3, folder="f"
    )
    assert choose_restore(range(2), {0: (4,), 1: (3,)}, None) == Restore(source="init", step=0)
    assert choose_restore(range(1), {0: (4,)}, (9, "f")) == Restore(
        source="durable", step=9, folder="f"
    )


def test_without_any_readable_state_a_run_fails_by_name_and_never_starts_over() -> None:
    hand = Hand()
    hand.gather()
    hand.read()
    hand.send(DurableFound(None, trouble="MANIFEST.json is damaged"))
    assert hand.state.phase == "choosing", "it is asked again first"
    actions = hand.wait(LIMITS.choose_timeout_s + 1)
    assert [a for a in actions if isinstance(a, FindDurable)], "it was not asked again"
    finish = only(actions, Finish)
    assert "cannot be read: MANIFEST.json is damaged; repair" in finish.detail


@pytest.mark.parametrize("answer", [DurableFound(None, trouble="it is damaged"), None])
def test_without_a_readable_checkpoint_a_run_continues_from_its_arenas(
    answer: DurableFound | None,
) -> None:
    hand = Hand()
    hand.gather()
    hand.read(7)
    actions = hand.send(answer) if answer else hand.wait(LIMITS.read_timeout_s + 0.5)
    assert only(actions, BeginGeneration).restored_step == 7
