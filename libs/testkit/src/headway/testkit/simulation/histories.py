"""Seeded histories over all disturbances; each must end in a finished run or a reasoned refusal."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from headway.controller.decisions.events import (
    CheckWanted,
    DrainNode,
    EvictNode,
    ExecutorEnded,
    NodeRebooted,
)
from headway.launch.engine import Replaces
from headway.testkit.simulation.cluster import Cluster
from headway.testkit.simulation.node import Node

NODES = 4
STEPS = 150
CALM_TICKS = 3000
"""Five minutes of the model's time: enough for every limit, one after the other."""
Disturbance = Callable[[Cluster, random.Random], None]
ACTIONS = (
    "BeginGeneration",
    "FindDurable",
    "CheckCheckpoint",
    "AwaitCheckpoint",
    "RestartNode",
    "Remember",
    "Finish",
    "ReleaseNode",
    "ReplaceMachine",
)
NODE_FAULTS = ("spawn_fails", "fork_fails", "files_fail", "claim_fails")


def _node(cluster: Cluster, chance: random.Random) -> Node:
    return chance.choice(list(cluster.nodes.values()))


def _kill(cluster: Cluster, chance: random.Random) -> None:
    members = cluster.members()
    for worker in chance.sample(members, min(len(members), chance.choice((1, 1, 2, 4)))):
        worker.kill()


def _freeze(cluster: Cluster, chance: random.Random) -> None:
    if members := cluster.members():
        chance.choice(members).is_hung = True


def _service(cluster: Cluster, chance: random.Random) -> None:
    if processes := list(_node(cluster, chance).processes.values()):
        process = chance.choice(processes)
        process.state, process.is_hung = chance.choice((("Z", False), ("T", False), ("S", True)))


def _executor(cluster: Cluster, chance: random.Random) -> None:
    """Its init restarts it, unless that ends too."""
    node = _node(cluster, chance)
    if node.executor is None:
        return
    how = chance.choice(("killed", "stopped", "hung", "with its init", "with its init"))
    if how == "stopped":
        node.executor.state = "T"
    elif how == "hung":
        node.executor.is_hung = True
    else:
        node.executor.kill()
    if how == "with its init":
        node.init = None
        if chance.random() < 0.5:
            cluster.driver.inbox.append(ExecutorEnded(node.number))


def _wipe(cluster: Cluster, chance: random.Random) -> None:
    node = _node(cluster, chance)
    node.wipe()
    if chance.random() < 0.5:
        cluster.driver.inbox.append(NodeRebooted(node.number))


def _machine(cluster: Cluster, chance: random.Random) -> None:
    if sum(node.is_lost for node in cluster.nodes.values()) < 2:
        cluster.lose_node(_node(cluster, chance).number)


def _sleep(cluster: Cluster, chance: random.Random) -> None:
    _node(cluster, chance).asleep_until = cluster.now + chance.choice((1.0, 3.0, 8.0))


def _partition(cluster: Cluster, chance: random.Random) -> None:
    cluster.network.cut[chance.randrange(NODES)] = cluster.now + chance.choice((1.0, 3.0, 8.0))


def _weather(cluster: Cluster, chance: random.Random) -> None:
    network = cluster.network
    network.loss = chance.choice((0.0, 0.1, 0.3))
    network.duplication = chance.choice((0.0, 0.2))
    network.delay_s = chance.choice((0.0, 0.2, 0.8))


def _driver(cluster: Cluster, chance: random.Random) -> None:
    """It is killed, or cut off and blind: it works on beside its successor for a while.

    Nodes that receive its beats would not claim its lease.
    """
    if chance.random() < 0.7:
        cluster.driver.process.kill()
    else:
        cluster.driver.blind_until = cluster.now + 20.0
        cluster.network.cut[cluster.driver.host] = cluster.now + 8.0


def _stall(cluster: Cluster, chance: random.Random) -> None:
    cluster.driver.asleep_until = cluster.now + chance.choice((1.0, 5.0))


def _disk(cluster: Cluster, chance: random.Random) -> None:
    cluster.disk.failing[chance.choice(ACTIONS)] = chance.choice(("fails", "silent", "lies"))


def _disk_works(cluster: Cluster, chance: random.Random) -> None:
    del chance
    cluster.disk.failing.clear()


def _spawn(cluster: Cluster, chance: random.Random) -> None:
    node, name = _node(cluster, chance), chance.choice(NODE_FAULTS)
    setattr(node, name, not getattr(node, name))


def _flip(cluster: Cluster, chance: random.Random) -> None:
    node = _node(cluster, chance)
    node.flipped |= {(rank, max(steps)) for rank, steps in node.arenas.items() if steps}


def _damage(cluster: Cluster, chance: random.Random) -> None:
    node = _node(cluster, chance)
    node.damaged |= set(list(node.arenas)[:1])


def _corrupt(cluster: Cluster, chance: random.Random) -> None:
    if cluster.disk.durable:
        cluster.disk.durable[chance.choice(sorted(cluster.disk.durable))] = False


def _unmount(cluster: Cluster, chance: random.Random) -> None:
    del chance
    cluster.disk.is_elsewhere = (
        not cluster.disk.is_elsewhere and cluster.driver.state.memory.marked >= 0
    )


def _evict(cluster: Cluster, chance: random.Random) -> None:
    number = chance.randrange(NODES)
    cluster.driver.inbox.append(EvictNode(number))


def _drain(cluster: Cluster, chance: random.Random) -> None:
    cluster.driver.inbox.append(DrainNode(chance.randrange(NODES), chance.choice((0.0, 5.0, 60.0))))


def _return(cluster: Cluster, chance: random.Random) -> None:
    node = _node(cluster, chance)
    if node.executor is None and not node.is_lost:
        node.restart()


def _verdict(cluster: Cluster, chance: random.Random) -> None:
    response = chance.choice(("replace_node", "restart_service", "observe", "stop_run"))
    cluster.judge(response, chance.randrange(NODES), service="dataloader", detail="seen in the log")


def _check(cluster: Cluster, chance: random.Random) -> None:
    """Machines are found unfit, one or all of them, or fit again."""
    for node in chance.choice(([_node(cluster, chance)], list(cluster.nodes.values()))):
        node.check_fails = not node.check_fails
    cluster.driver.inbox.append(CheckWanted(chance.randrange(NODES)))


def _roll_back(cluster: Cluster, chance: random.Random) -> None:
    steps = [*cluster.disk.durable, 7]
    cluster.command("rollback", count=chance.choice(steps))


def _extend(cluster: Cluster, chance: random.Random) -> None:
    if cluster.finished is None:
        cluster.command("extend", count=cluster.total + chance.choice((1, 20)))


def _pause(cluster: Cluster, chance: random.Random) -> None:
    cluster.command(chance.choice(("pause", "resume")))


def _large(cluster: Cluster, chance: random.Random) -> None:
    cluster.ranks.restore_s = chance.choice((0.0, 1.0, 6.0))


DISTURBANCES: dict[str, Disturbance] = {
    "kill": _kill,
    "large": _large,
    "freeze": _freeze,
    "service": _service,
    "executor": _executor,
    "wipe": _wipe,
    "machine": _machine,
    "sleep": _sleep,
    "partition": _partition,
    "weather": _weather,
    "driver": _driver,
    "stall": _stall,
    "disk": _disk,
    "disk works": _disk_works,
    "spawn": _spawn,
    "flip": _flip,
    "damage": _damage,
    "corrupt": _corrupt,
    "unmount": _unmount,
    "evict": _evict,
    "drain": _drain,
    "return": _return,
    "verdict": _verdict,
    "check": _check,
    "roll back": _roll_back,
    "extend": _extend,
    "pause": _pause,
}


def history(seed: int, kinds: Sequence[str] | None = None) -> Cluster:
    """Disturb a run at random, then let it run undisturbed until it ends.

    Args:
        seed: decides everything.
        kinds: of disturbances, a random choice unless given.

    Raises:
        AssertionError: an invariant broke, a phase was silent for longer than its limit, or the run
            did not come to an end.
    """
    chance = random.Random(f"history {seed}")
    replaces: tuple[Replaces, ...] = ("nothing", "lost", "condemned")
    cluster = Cluster(seed=seed, nodes=NODES, steps=STEPS, replaces=replaces[seed % 3])
    kinds = kinds or chance.sample(sorted(DISTURBANCES), chance.randrange(1, 7))
    done = []
    for _ in range(chance.randrange(2, 12)):
        cluster.run(chance.choice((1, 3, 8, 20)))
        kind = chance.choice(kinds)
        done.append((cluster.now, kind))
        DISTURBANCES[kind](cluster, chance)
    calm(cluster)
    cluster.run(CALM_TICKS)
    end, state = cluster.finished, cluster.state
    assert end is not None, f"seed {seed}: {state.phase} since long, {state.why()!r}, after {done}"
    assert end.outcome == "finished" or end.detail, f"seed {seed}: {end} has no reason"
    return cluster


def calm(cluster: Cluster) -> None:
    """End the disturbances: what is lost permanently stays lost, everything else works again."""
    cluster.network.calm()
    cluster.disk.failing.clear()
    cluster.disk.is_elsewhere = False
    cluster.driver.asleep_until = cluster.driver.blind_until = 0.0
    for node in cluster.nodes.values():
        node.asleep_until, node.check_fails = 0.0, False
        for name in NODE_FAULTS:
            setattr(node, name, False)
    if not any(node.is_tended for node in cluster.nodes.values()):
        for node in cluster.nodes.values():  # every machine was restarted: somebody runs it again
            node.restart()
    if any(command.operation == "pause" for command in cluster.disk.commands):
        cluster.command("resume")


def outcomes(seeds: range) -> Counter[str]:
    """How the histories of these seeds end: the outcome, and for refusals the kind of reason."""
    ends: Counter[str] = Counter()
    for seed in seeds:
        try:
            end = history(seed).finished
        except AssertionError as error:
            error.add_note(f"in the history of seed {seed}")
            raise
        assert end is not None
        words = "" if end.outcome == "finished" else ": " + end.detail
        ends[end.outcome + "".join(c for c in words if not c.isdigit())] += 1
    return ends
