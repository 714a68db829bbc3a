"""What every decision of a run stands on: its state, its nodes, and the few ways to change phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from headway.common.wire.messages.driver import NodeBeat
from headway.common.wire.messages.executor import KillWorker, ToWorker
from headway.common.wire.messages.worker import Restore, Steer
from headway.trainer.config import RecoveryConfig
from headway.trainer.control.events import Action, Finish, Log, RestartNode, Tell
from headway.trainer.control.nodes import Node, View

# an answer takes one beat (0.25 s) at most; sooner would only repeat what is under way
RESEND_S = 0.4
# they may have many causes; so many times ``max_crashes`` of them at one step have one
RECOVERIES_PER_CRASH = 4


class Decisions(View):
    """State of a run, and what becomes of its nodes; ``RunState`` adds the phases of a recovery."""

    def __init__(
        self,
        *,
        steps: int,
        rank_nodes: dict[int, int],
        nodes: int,
        limits: RecoveryConfig,
        now: float,
        generation: int = -1,
        commands: list[Steer] | None = None,
        epoch: int = 0,
    ) -> None:
        self.steps, self.limits, self.epoch = steps, limits, epoch
        self.generation = generation
        self.rank_nodes = dict(rank_nodes)
        self.nodes = {node: Node(heard_at=now) for node in range(nodes)}
        self.commands: list[Steer] = list(commands or [])
        self.members: dict[int, str] = {}
        self.gone: set[str] = set()
        self.phase = "gathering"
        self.since = now
        self.outcome = ""
        self.restore = Restore(source="init", step=0)
        self.store: tuple[str, int, str] | None = None
        self.sealed: dict[int, dict[int, tuple[int, ...]]] = {}
        self.fenced_for = ""
        self.causes: dict[
            str, str
        ] = {}  # by signature: what has been lost since the last generation began
        # by signature, "" for any, and step gone back to
        self.crashes: Counter[tuple[str, int]] = Counter()
        self.max_durable: int | None = None
        self._adopting = generation >= 0
        self._sent: dict[tuple[object, ...], float] = {}

    # ---- nodes ----------------------------------------------------------------------------------
    def _on_beat(self, beat: NodeBeat, now: float) -> None:
        node = self.nodes.get(beat.node)
        if node is None or node.status == "lost":
            return
        node.heard_at = now
        node.status = "active" if beat.node in self.rank_nodes.values() else "spare"
        if beat.workers is not None:
            node.workers = {worker.worker: worker for worker in beat.workers}
        if beat.services is not None:
            node.services = dict(beat.services)

    def _lose_node(self, number: int, reason: str, now: float) -> list[Action]:
        node = self.nodes[number]
        if node.status == "lost":
            return []
        node.status = "lost"
        self.gone.update(node.workers)
        node.workers.clear()
        node.services.clear()
        actions: list[Action] = [Log("node_lost", {"node": number, "reason": reason})]
        if number in self.rank_nodes.values() and self.phase in ("joining", "running"):
            actions += self._fence(f"node {number} is lost: {reason}", now)
        return actions

    def _replace_lost(self, now: float) -> list[Action]:
        """Move the ranks of lost nodes to spares; fail only when no node is left that could become one."""
        actions: list[Action] = []
        for lost in {
            home for home in self.rank_nodes.values() if self.nodes[home].status == "lost"
        }:
            ranks = [rank for rank, home in self.rank_nodes.items() if home == lost]
            free = {
                n: v
                for n, v in self.nodes.items()
                if n not in self.rank_nodes.values() and v.status != "lost"
            }
            spare = next((n for n, view in free.items() if view.status == "spare"), None)
            if spare is not None:
                self.rank_nodes.update(dict.fromkeys(ranks, spare))
                self.nodes[spare].status = "active"
                actions.append(Log("node_replaced", {"node": lost, "spare": spare, "ranks": ranks}))
            elif not free:
                return self._finish("failed", f"node {lost} is lost and no spare node is left", now)
        return actions

    def _watch_nodes(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for number, node in self.nodes.items():
            silent = now - node.heard_at
            if node.status == "lost" or silent < self.limits.node_silent_s:
                continue
            if silent >= self.limits.node_lost_s and self.spare_for(number):
                actions += self._lose_node(number, f"silent for {silent:.1f} s", now)
            elif now - node.asked_at >= self.limits.node_silent_s:
                node.status, node.asked_at = "silent", now
                actions += [Log("node_silent", {"node": number}), RestartNode(number)]
        return actions

    # ---- changes of phase ------------------------------------------------------------------------
    def _fence(self, reason: str, now: float, *, is_symptom: bool = False) -> list[Action]:
        """End the generation. A symptom is what a survivor felt; the cause is on its way, or never told."""
        self._enter("leaving", now)
        self.fenced_for = reason
        fields = {
            "generation": self.generation,
            "step": self.step,
            "reason": reason,
            "is_symptom": is_symptom,
        }
        return [Log("fence", fields)]

    def _crash_loop(self) -> str:
        """Count what led back to this step; tells the cause that has done so too often to be an accident, else ""."""
        step, limit, cause = self.restore.step, self.limits.max_crashes, self.fenced_for
        if cause and not self.causes:  # a survivor's word is all there is
            self.causes[cause] = cause
        for signature, cause in self.causes.items():
            self.crashes[signature, step] += 1
            if self.crashes[signature, step] >= limit:
                return f"{cause} ({limit} times at step {step})"
        self.crashes["", step] += bool(self.causes)
        if self.crashes["", step] >= RECOVERIES_PER_CRASH * limit:
            return f"{RECOVERIES_PER_CRASH * limit} recoveries at step {step}, the last: {cause}"
        self.causes, self.fenced_for = {}, ""
        return ""

    def _finish(self, outcome: str, detail: str, now: float) -> list[Action]:
        self._enter("over", now)
        self.outcome = outcome
        return [Finish(outcome, detail)]

    @property
    def refill(self) -> bool:
        """Whether nodes may fork standbys now: not while survivors need the cores for a rebuild."""
        return self.phase in ("running", "gathering")

    def _enter(self, phase: str, now: float) -> None:
        self.phase, self.since = phase, now
        self._sent.clear()

    def _due(self, key: tuple[object, ...], now: float) -> bool:
        if now - self._sent.get(key, float("-inf")) < RESEND_S:
            return False
        self._sent[key] = now
        return True

    def _tell(self, worker: str, message: ToWorker | KillWorker) -> Tell:
        return Tell(self._home(worker) or 0, message)


def choose_restore(
    ranks: Iterable[int], sealed: Mapping[int, Iterable[int]], durable: tuple[int, str] | None
) -> Restore:
    """The restore point of a generation: the newest step that every rank can have.

    Args:
        ranks: every rank of the grid.
        sealed: rank -> steps of the snapshots in that rank's arena on the node that carries the rank
            now; a rank without an arena (a fresh run, a lost node) is absent.
        durable: step and folder of the newest complete checkpoint, None when there is none.

    A step is never taken from a mixture of arenas and folders: all ranks restore from one kind.
    """
    holdings = [frozenset(sealed.get(rank, ())) for rank in ranks]
    common = frozenset.intersection(*holdings) if holdings else frozenset()
    newest = max(common, default=-1)
    if durable is not None and durable[0] > newest:
        return Restore(source="durable", step=durable[0], folder=durable[1])
    if newest >= 0:
        return Restore(source="arena", step=newest)
    return Restore(source="init", step=0)
