"""The guardian's decisions: services and workers that die, hang or cannot be started;
seeded histories."""

from __future__ import annotations

import pytest
from headway.common.decide import Failed, Log
from headway.common.errors import InputError
from headway.common.node.process import ProcessId
from headway.common.wire.messages.executor import WorkerBeat
from headway.controller.executor import node_events as on
from headway.controller.executor.guardian import SERVICES
from headway.testkit.simulation.lone_node import RUN_ID, LoneNode

START_S = 15.0


def up(**options: object) -> LoneNode:
    node = LoneNode(**options)  # type: ignore[arg-type]
    node.run(START_S)
    assert node.is_whole, node.guardian.trouble()
    return node


def test_a_node_gets_its_services_and_workers() -> None:
    node = up()
    assert set(node.guardian.services.processes()) == set(SERVICES)
    assert {len(times) for times in node.starts.values()} == {1} and len(node.asked_forks) == 3


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_that_lives_and_sends_no_beats_is_replaced(name: str) -> None:
    node = up()
    hung = node.guardian.services.process(name)
    assert hung is not None
    node.processes[hung].is_hung = True
    node.run(20.0)
    assert node.is_whole and node.guardian.services.process(name) != hung
    assert len(node.starts[name]) == 2, "the others are left alone"
    assert sum(map(len, node.starts.values())) == 5


def test_a_service_that_never_beats_is_replaced_after_its_time_to_start() -> None:
    node = LoneNode()
    node.run(1.0)
    dead = node.guardian.services.process("dataloader")
    assert dead is not None
    node.processes[dead].is_hung = True
    node.run(50.0)
    assert node.guardian.services.process("dataloader") == dead
    node.run(20.0)
    assert node.is_whole and node.guardian.services.process("dataloader") != dead


def test_a_service_that_is_slow_to_die_is_logged_once_and_counted_once() -> None:
    node = up()
    hung = node.guardian.services.process("dataloader")
    assert hung is not None
    node.processes[hung].is_hung = node.processes[hung].is_stuck = True
    node.run(20.0)
    logs = [a.event for _, a in node.actions if isinstance(a, Log)]
    assert logs.count("ended a service to start it again") == 1
    node.processes[hung].state = "Z"
    node.run(START_S)
    assert node.is_whole
    (gone,) = [a for _, a in node.actions if isinstance(a, Log) and a.event == "service is gone"]
    assert (gone.fields["name"], gone.fields["restarts"]) == ("dataloader", 1)


def test_a_service_that_is_restarted_in_a_loop_is_in_trouble_while_it_runs() -> None:
    node = up()
    for _ in range(3):
        process = node.guardian.services.process("dataloader")
        assert process is not None
        node.processes[process].state = "Z"
        node.run(7.0)
        assert node.guardian.services.is_serving("dataloader")
    assert node.guardian.trouble() == "dataloader is restarted repeatedly: died"
    node.run(START_S)
    assert node.is_whole


def test_a_data_daemon_is_named_from_its_death_until_it_serves_again() -> None:
    node = up()
    process = node.guardian.services.process("dataloader")
    assert process is not None
    node.processes[process].state = "Z"
    seen = []
    while not seen or seen[-1]:
        node.run(0.25)
        seen.append(node.guardian.trouble())
    assert list(dict.fromkeys(seen))[-2:] == ["dataloader is starting again: died", ""]
    assert all(text.endswith(": died") for text in seen[:-1])
    assert node.guardian.services.is_serving("dataloader")


def test_the_executors_own_stall_is_not_held_against_services() -> None:
    node = up()
    for _ in range(5):
        node.pass_time(30.0)
        node.run(2.0)
    assert node.is_whole and sum(map(len, node.starts.values())) == 4


def test_a_spawn_that_fails_is_tried_again_with_pauses_and_a_sentence() -> None:
    node = LoneNode(spawn_fails=True)
    node.run(30.0)
    gaps = [b - a for a, b in zip(node.starts["agent"], node.starts["agent"][1:], strict=False)]
    assert len(node.starts["agent"]) < 16 and gaps == sorted(gaps)
    assert "agent does not run: cannot be started: no space left" in node.guardian.trouble()
    node.spawn_fails = False
    node.run(START_S + 5.0)
    assert node.is_whole


def test_a_failing_spawn_does_not_hide_the_death_of_a_worker() -> None:
    node = up()
    node.spawn_fails = True
    agent = node.guardian.services.process("agent")
    victim = next(iter(node.guardian.workers.members.values())).process
    assert agent is not None
    node.processes[agent].state = node.processes[victim].state = "Z"
    node.run(0.5)
    gone = [a.message for _, a in node.actions if isinstance(a, on.Send)]
    assert [m.pid for m in gone] == [victim.pid]  # type: ignore[attr-defined]


def test_standbys_that_die_after_their_first_beat_are_forked_with_pauses() -> None:
    node = up()
    node.standbys_die, before = True, len(node.asked_forks)
    node.run(30.0)
    assert len(node.asked_forks) - before <= 8 + node.guardian.wanted
    late = len([t for t in node.asked_forks if t > node.now - 15.0])
    assert late <= 2
    assert (
        "forks fail" in node.guardian.trouble()
        and "soon after its start" in node.guardian.trouble()
    )
    node.standbys_die = False
    node.run(60.0)
    assert node.is_whole


def test_forks_that_fail_are_tried_again_one_by_one() -> None:
    node = LoneNode(fork_fails=True)
    node.run(40.0)
    assert len(node.asked_forks) <= 9, "three at first, then one at a time"
    assert "could not be forked: try again" in node.guardian.trouble()
    node.fork_fails = False
    node.run(60.0)
    assert node.is_whole


def test_a_zygote_that_leaves_a_fork_unanswered_is_replaced() -> None:
    node = up()
    zygote = node.guardian.services.process("zygote")
    worker = next(iter(node.guardian.workers.members.values())).process
    assert zygote is not None
    node.guardian.services._silent_s = 1e9
    node.processes[zygote].is_hung = True
    node.processes[worker].state = "Z"
    node.run(node.config.recovery.fork_limit_s + 5.0)
    assert node.guardian.services.process("zygote") != zygote
    node.run(20.0)
    assert node.is_whole


def test_a_stopped_worker_is_ended_and_a_traced_one_is_left_alone() -> None:
    node = up()
    first, second, _ = [m.process for m in node.guardian.workers.members.values()]
    node.processes[first].state, node.processes[second].state = "T", "t"
    node.run(3.0)
    members = {m.process for m in node.guardian.workers.members.values()}
    assert first not in members and second in members


def test_a_worker_under_a_debugger_is_left_alone_by_the_next_executor_too() -> None:
    node = up()
    held = next(iter(node.guardian.workers.members.values())).process
    node.processes[held].state = "t"
    node.restart_executor()
    node.run(30.0)
    assert held in node.processes
    node.processes[held].state = "S"
    node.run(5.0)
    assert held in {m.process for m in node.guardian.workers.members.values()} and node.is_whole


def test_an_order_to_restart_a_service_that_comes_late_leaves_its_successor_alone() -> None:
    node = up()
    service = node.guardian.services.process("dataloader")
    assert service is not None
    node.handle(on.ServiceBlamed("dataloader", "no batch", service.pid - 1))
    node.run(5.0)
    assert node.guardian.services.process("dataloader") == service
    node.handle(on.ServiceBlamed("dataloader", "no batch", service.pid))
    node.run(START_S)
    assert node.is_whole and node.guardian.services.process("dataloader") != service


def test_a_hung_standby_is_replaced() -> None:
    node = up()
    hung = next(iter(node.guardian.workers.members.values())).process
    node.processes[hung].is_hung = True
    node.run(30.0)
    assert node.is_whole and hung not in node.processes


@pytest.mark.parametrize("name", ["n2w1", "n1w", "n1w1234567890", "../../x", ""])
def test_a_beat_under_a_name_that_no_worker_has_is_refused(name: str) -> None:
    node = up()
    with pytest.raises(InputError, match="is not a worker of node 1"):
        node.handle(on.WorkerReported(WorkerBeat(worker=name, pid=1, start_ticks=1, status="idle")))
    assert node.is_whole


def test_a_state_file_that_cannot_be_written_stops_nothing_and_is_tried_again() -> None:
    node = LoneNode(files_fail=True)
    node.run(START_S)
    assert len(node.guardian.workers.members) == node.guardian.wanted
    assert (
        node.guardian.trouble() == "the executor's state cannot be written: no space left on device"
    )
    failed = [a for _, a in node.actions if isinstance(a, on.Remember)][-1]
    before = len(node.actions)
    for error in ("b: I/O error", "b: I/O error", "a: stale file handle", "c: quota"):
        node.handle(Failed(failed, error))
    logs = [a.fields["reason"] for _, a in node.actions[before:] if isinstance(a, Log)]
    assert logs == ["b: I/O error", "a: stale file handle", "c: quota"], "each is logged once"
    node.files_fail = False
    node.run(3.0)
    assert node.is_whole and node.memory == node.guardian.memory()


def test_a_successor_adopts_everything_and_is_silent_until_its_workers_spoke() -> None:
    node = up()
    before = node.memory
    node.restart_executor()
    assert not node.guardian.workers.is_settled
    node.run(START_S)
    assert node.is_whole and node.memory.workers == before.workers
    assert dict(node.memory.services) == dict(before.services)
    assert sum(map(len, node.starts.values())) == 4 and len(node.asked_forks) == 3


def test_a_hung_service_is_found_by_a_successor_too() -> None:
    node = up()
    hung = node.guardian.services.process("dataloader")
    assert hung is not None
    node.processes[hung].is_hung = True
    node.restart_executor()
    node.run(20.0)
    assert node.is_whole and node.guardian.services.process("dataloader") != hung


def test_orders_of_another_run_or_of_an_older_driver_are_refused_after_a_restart_too() -> None:
    node = up()
    assert node.guardian.obeys(RUN_ID, 7)
    assert not node.guardian.obeys(RUN_ID, 6) and not node.guardian.obeys("", 8)
    assert not node.guardian.obeys("12345678", 9)
    node.driver_beats = False
    node.run(1.0)
    node.restart_executor()
    assert not node.guardian.obeys(RUN_ID, 6) and node.guardian.obeys(RUN_ID, 7)


def test_a_driver_that_cannot_renew_is_kept_while_nobody_can_claim_and_replaced_once_one_can() -> (
    None
):
    """A folder that takes no writes: the driver that is heard is better than none."""
    node = up()
    node.driver_beats, node.claim_fails = False, True
    node.run(30.0)
    node.claim_fails = False
    node.run(30.0)
    (driver,) = [p for p in node.processes.values() if p.name == "driver"]
    claims, starts = len(node.claims), len(node.starts["driver"])
    node.claim_fails = True
    node.run(60.0)
    assert len(node.claims) > claims and driver.id in node.processes
    assert "the driver's lease cannot be claimed" in node.guardian.trouble()
    node.claim_fails = False
    node.run(10.0)
    assert driver.id not in node.processes and len(node.starts["driver"]) == starts + 1
    assert [p.name for p in node.processes.values()].count("driver") == 1


def test_a_stale_lease_is_not_claimed_while_it_cannot_be_read() -> None:
    node = up()
    node.driver_beats, node.claim_fails = False, True
    node.run(60.0)
    claims = len(node.claims)
    assert claims, "it is stale"
    node.can_read_lease = False
    node.run(60.0)
    assert len(node.claims) <= claims + 1, "one was under way"
    assert "the driver's lease cannot be read" in node.guardian.trouble() and not node.outcome
    node.can_read_lease = True
    node.run(60.0)
    assert len(node.claims) > claims + 1


@pytest.mark.parametrize(("state", "ends"), [("gone", True), ("unknown", False)])
def test_only_a_folder_that_was_removed_for_certain_ends_the_run(state: str, ends: bool) -> None:
    node = up()
    node.folder = state
    node.run(node.config.recovery.folder_gone_s - 5.0)
    assert not node.outcome and "folder cannot be seen" in node.guardian.trouble()
    node.run(30.0)
    assert (node.outcome == "failed") == ends


def test_a_folder_that_comes_back_in_time_ends_nothing() -> None:
    node = up()
    for _ in range(3):
        node.folder = "gone"
        node.run(40.0)
        node.folder = "there"
        node.run(5.0)
    assert not node.outcome and node.is_whole


def test_a_node_that_carries_no_rank_any_more_forgets_its_arenas_once_it_can() -> None:
    node = up()
    node.files_fail, node.active = True, False
    node.run(5.0)
    node.files_fail = False
    node.run(5.0)
    forgotten = [t for t, a in node.actions if isinstance(a, on.ForgetArenas)]
    assert forgotten and len([t for t in forgotten if t > node.now - 4.0]) <= 1


def test_no_executor_forgets_the_arenas_of_a_node_that_carries_ranks() -> None:
    node = up()
    node.restart_executor()
    node.run(5.0)
    assert node.is_whole and not [a for _, a in node.actions if isinstance(a, on.ForgetArenas)]


def test_the_version_grows_with_what_changes_and_not_with_steps() -> None:
    node = up()
    version = node.guardian.version
    name, member = next(iter(node.guardian.workers.members.items()))
    who = member.process
    beat = {"worker": name, "pid": who.pid, "start_ticks": who.start_ticks}
    node.handle(on.WorkerReported(WorkerBeat(**beat, status="idle", step=5)))  # type: ignore[arg-type]
    assert node.guardian.version == version
    node.handle(
        on.WorkerReported(WorkerBeat(**beat, status="running", generation=0, rank=0, step=6))
    )  # type: ignore[arg-type]
    assert node.guardian.version == version + 1 and node.guardian.workers.step() == 6


def test_what_the_guardian_does_not_know_is_harmless() -> None:
    node = up()
    node.handle(on.WorkerUnwanted("n1w99"))
    node.handle(on.ServiceBlamed("nobody", "x"))
    node.handle(on.Started(on.StartService("nobody"), ProcessId(1, 1)))
    node.handle(Failed(on.StartService("agent"), "late"))
    node.run(1.0)
    assert node.is_whole


DISTURBANCES = ("spawn_fails", "fork_fails", "standbys_die", "files_fail", "claim_fails")


@pytest.mark.parametrize("seed", [*range(24), 73, 85, 124])
def test_histories_end_in_a_whole_node(seed: int) -> None:
    """Invariants are checked after every event by ``Node.check``."""
    node = LoneNode(seed=seed)
    for _ in range(12):
        for name in DISTURBANCES:
            setattr(node, name, node.random.random() < 0.25)
        node.folder = node.random.choice(("there", "there", "gone", "unknown"))
        node.driver_beats = node.random.random() < 0.7
        for process in list(node.processes.values()):
            if node.random.random() < 0.15:
                process.is_hung = True
            elif node.random.random() < 0.15:
                process.state = node.random.choice(("Z", "T"))
        if node.random.random() < 0.25:
            node.restart_executor()
        if node.random.random() < 0.25:
            node.pass_time(node.random.uniform(1.0, 20.0))
        node.run(node.random.uniform(1.0, 15.0))
    for name in DISTURBANCES:
        setattr(node, name, False)
    node.folder, node.driver_beats = "there", True
    for process in node.processes.values():
        process.is_hung = False
    node.run(90.0)
    assert node.is_whole, node.guardian.trouble()
