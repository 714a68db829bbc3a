"""What an executor notes of how its ranks end, for the agent of its node."""

from __future__ import annotations

import pytest
from headway.common.node.process import ProcessId
from headway.common.wire.messages.executor import LeftGeneration, WorkerBeat
from headway.controller.executor import node_events as on
from headway.testkit.simulation.lone_node import LoneNode

START_S = 15.0


def test_every_end_of_a_rank_is_noted_once_and_before_it_is_caused() -> None:
    node = LoneNode()
    node.run(START_S)
    table = node.guardian.workers
    beats = [one.beat for one in table.members.values()][:2]
    for rank, beat in enumerate(beats):
        holder = WorkerBeat(
            worker=beat.worker, pid=beat.pid, start_ticks=beat.start_ticks, status="running",
            generation=4, rank=rank,
        )  # fmt: skip
        node.handle(on.WorkerReported(holder))
    killed, stopped = (ProcessId(beat.pid, beat.start_ticks) for beat in beats)
    raised = LeftGeneration(
        worker=beats[0].worker, generation=4, rank=0, reason="error", detail="ValueError: 3"
    )
    peer = LeftGeneration(worker=beats[1].worker, generation=4, rank=1, reason="peer")
    before = len(node.actions)
    node.handle(on.WorkerLeft(raised))
    node.handle(on.WorkerLeft(peer))
    words = {beats[0].worker: on.Exit("ValueError: 4", 1)}
    states = dict.fromkeys(node.guardian.watched(), "S") | {killed: "Z", stopped: "T"}
    node.handle(on.Looked(states, words))
    done = [action for _, action in node.actions[before:]]
    ends = [action.end for action in done if isinstance(action, on.NoteEnd)]
    found = [(end.rank, end.how, end.exit_code, end.reason) for end in ends]
    assert found == [
        (0, "raised", None, "ValueError: 3"),
        (0, "exited", 1, "ValueError: 4"),
        (1, "stopped", None, ""),
    ]
    assert {end.generation for end in ends} == {4}
    kinds = [type(action) for action in done]
    assert kinds.index(on.Kill) > max(i for i, kind in enumerate(kinds) if kind is on.NoteEnd)


@pytest.mark.parametrize(
    ("said", "how"),
    [(on.Exit(), "killed"), (on.Exit("out of memory", is_out_of_memory=True), "out_of_memory")],
)
def test_a_process_without_last_words_was_killed_and_the_kernels_count_shows_by_whom(
    said: on.Exit, how: str
) -> None:
    node = LoneNode()
    node.run(START_S)
    beat = next(one.beat for one in node.guardian.workers.members.values())
    holder = WorkerBeat(
        worker=beat.worker, pid=beat.pid, start_ticks=beat.start_ticks, status="running",
        generation=4, rank=0,
    )  # fmt: skip
    node.handle(on.WorkerReported(holder))
    states = dict.fromkeys(node.guardian.watched(), "S")
    before = len(node.actions)
    node.handle(
        on.Looked(states | {ProcessId(beat.pid, beat.start_ticks): "Z"}, {beat.worker: said})
    )
    ends = [action.end for _, action in node.actions[before:] if isinstance(action, on.NoteEnd)]
    assert [(end.rank, end.how, end.exit_code) for end in ends] == [(0, how, None)]


def test_an_end_that_was_ordered_is_noted_as_that_and_a_standby_is_not_noted() -> None:
    node = LoneNode()
    node.run(START_S)
    first, second, _ = [one.beat for one in node.guardian.workers.members.values()]
    holder = WorkerBeat(
        worker=first.worker, pid=first.pid, start_ticks=first.start_ticks, status="running",
        generation=4, rank=0,
    )  # fmt: skip
    node.handle(on.WorkerReported(holder))
    for _ in range(2):  # the driver repeats its order
        node.handle(on.WorkerUnwanted(first.worker))
    node.processes[ProcessId(second.pid, second.start_ticks)].kill()
    node.run(5.0)
    ends = [action.end for _, action in node.actions if isinstance(action, on.NoteEnd)]
    assert [(end.rank, end.how) for end in ends] == [(0, "ordered")]
