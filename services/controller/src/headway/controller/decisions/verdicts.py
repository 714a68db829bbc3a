"""What the driver makes of the monitor's verdicts: one table from response to action."""

from __future__ import annotations

from headway.common.decide import Action
from headway.common.wire.messages.executor import RestartService
from headway.controller.decisions.admission import node_checks
from headway.controller.decisions.core import Core
from headway.controller.decisions.events import Answer, Send, VerdictReceived

MAX_ANSWERS = 1024
MAX_HANGS = 64
CUT = "fabric_cut"
MAX_CUTS = 2
"""Nodes given up in a row for a cut of the ranks' network, without a step in between: of a pair the
wrong one may be named first, but more spares would not help."""
HANG = "the ranks hung, and which one caused it is not known"
"""Signature of an unexplained hang for the crash brake."""
HANG_SHOWN_S = 3.0
"""A hang that is not repeated for three of the monitor's periods has passed."""
RESTART_AGAIN_S = 2.0
RESTARTS = 5
"""The order to restart a service is repeated so often while beats show the old process."""


class Verdicts:
    """Each verdict is acted on once, and answered as often as it is repeated.

    An empty answer means that nothing is decided yet: the monitor repeats the verdict.

    | response | what is done |
    |---|---|
    | ``replace_worker``, ``kill_worker`` | the worker is lost, if its pid is that of a member |
    | ``restart_ranks`` | the generation ends, and the same workers begin the next one |
    | ``restart_service`` | the executor ends the service and starts it again |
    | ``replace_node`` | the node is given up, if a spare is ready; else a dead worker is replaced |
    | ``stop_run`` | the run fails, before its first generation; later the crash brake decides |
    | ``observe`` | nothing |

    A hang that may still pass is acted on once it has lasted for ``recovery.hang_act_s``, by
    default as long as a recovery takes: then it costs at most twice the least that it could have.
    Over gloo that must come before the collective ends by itself, after which no hang is left. With
    ``parallel.nccl_profile`` it comes after the time in which a link may come back.
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[str, int], str] = {}
        self._restarts: dict[tuple[int, str], tuple[int, str, float, int]] = {}
        """(node, service) -> pid of the process to end, the reason, when it was sent, how often."""
        self._hung_since: dict[str, float] = {}
        """Verdict -> when the last rank stopped moving."""
        self._cuts = (0, 0)
        """Nodes given up for cuts of the ranks' network, and the completed steps at the last."""

    def judge(self, core: Core, verdict: VerdictReceived) -> list[Action]:
        """Act on a verdict and answer it."""
        key = (verdict.id, verdict.revision)
        actions: list[Action] = []
        if key not in self._answers:
            taken, actions = self._act(core, verdict)
            if not taken:
                return [*actions, Answer(*key, "")]
            self._answers[key] = taken
            while len(self._answers) > MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]
        return [*actions, Answer(*key, self._answers[key])]

    def _act(self, core: Core, verdict: VerdictReceived) -> tuple[str, list[Action]]:
        if core.phase == "over":
            return "none: the run is over", []
        if verdict.response == "restart_ranks":
            return _too_late_or_early(core, verdict) or self._end_generation(core, verdict)
        if verdict.node < 0 and verdict.response == "observe":
            return "observe", []  # it names no node
        if verdict.node not in core.fleet.nodes:
            return f"none: node {verdict.node} is not in this run", []
        match verdict.response:
            case "replace_worker" | "kill_worker":
                return _too_late_or_early(core, verdict) or self._end_worker(core, verdict)
            case "restart_service":
                return self._restart(core, verdict)
            case "replace_node" if verdict.kind == "crash" and not _is_replaceable(core, verdict):
                return _too_late_or_early(core, verdict) or self._end_worker(core, verdict)
            case "replace_node":
                return self._replace_node(core, verdict)
            case "stop_run":
                return _stop_run(core, verdict)
            case "observe":
                node_checks.suspect(core, verdict)
                return "observe", []
            case other:
                return f"none: the response {other!r} is not known", []

    def _end_worker(self, core: Core, verdict: VerdictReceived) -> tuple[str, list[Action]]:
        workers = core.fleet.nodes[verdict.node].workers.values()
        for name in [view.worker for view in workers if view.pid == verdict.pid]:
            rank = core.members.rank_of.get(name)
            if rank is None or core.view(rank) is None:
                continue
            why = f" ({verdict.why})" if verdict.why else ""
            who = f"rank {rank} hangs while the others wait for it{why}; it is replaced"
            if self._may_pass(core, verdict, who):
                return "", []
            return f"replaced worker {name} of rank {rank}", core.lose_worker(name, verdict.kind)
        return f"none: pid {verdict.pid} on node {verdict.node} holds no rank", []

    def _end_generation(self, core: Core, verdict: VerdictReceived) -> tuple[str, list[Action]]:
        """Nobody is blamed: who leaves the generation begins the next one where it is."""
        who = "the ranks hang and which one causes it is not known; all of them start again"
        if self._may_pass(core, verdict, who):
            return "", []
        core.crash_loop.blame(HANG, HANG)
        return "started all ranks again in place", core.fence(HANG)

    def _may_pass(self, core: Core, verdict: VerdictReceived, who: str) -> bool:
        """Whether a hang has not lasted for long enough yet; then ``Running.why`` tells of it."""
        if not verdict.silence_s:
            return False
        now = core.clock.now
        since = self._hung_since.setdefault(verdict.id, now - verdict.silence_s)
        while len(self._hung_since) > MAX_HANGS:
            del self._hung_since[next(iter(self._hung_since))]
        limit_s = core.limits.hang_act_s or _automatic_s(core)
        core.hang = f"{who} after {limit_s:.0f} s without progress, {now - since:.0f} s so far"
        core.hang_shown_until = now + HANG_SHOWN_S
        return now - since < limit_s

    def _replace_node(self, core: Core, verdict: VerdictReceived) -> tuple[str, list[Action]]:
        node = core.fleet.nodes[verdict.node]
        if node.status == "lost":
            return f"none: node {node.number} is lost already", []
        is_cut = verdict.kind == CUT
        # a crash may have been recovered from already
        oldest = core.generation if is_cut else core.generation - 1
        if verdict.kind in (CUT, "crash") and 0 <= verdict.generation < oldest:
            return f"none: generation {verdict.generation} has ended", []
        carried = ""
        if not node.ranks:
            carried = ", which carried no ranks"
        elif core.fleet.spare_for(node.number) is None:
            return "observe: no spare is ready", []
        elif is_cut:
            num_cuts, at_step = self._cuts
            num_cuts = num_cuts if core.step <= at_step else 0
            if num_cuts >= MAX_CUTS:
                return f"observe: {num_cuts} nodes were given up for cuts and this one remains", []
            self._cuts = (num_cuts + 1, core.step)
        lost = core.lose_node(node.number, _reason(verdict), exclusion="verdict")
        return f"gave up node {node.number}{carried}", lost

    def _restart(self, core: Core, verdict: VerdictReceived) -> tuple[str, list[Action]]:
        node = core.fleet.nodes[verdict.node]
        if node.status == "lost":
            return f"none: node {node.number} is lost", []
        reason = _reason(verdict)
        pid = node.services.get(verdict.service, 0)
        if verdict.pid and pid and verdict.pid != pid:
            return f"none: {verdict.service} on node {node.number} is another process by now", []
        self._restarts[node.number, verdict.service] = (pid, reason, core.clock.now, 1)
        order = _restart_order(core, node.number, verdict.service, pid, reason)
        return f"restarted {verdict.service} on node {node.number}", [order]

    def repeat(self, core: Core) -> list[Action]:
        """Send orders to restart a service again while its old process is still shown."""
        actions: list[Action] = []
        for key, (pid, reason, sent_at, times) in list(self._restarts.items()):
            number, service = key
            if not pid or core.fleet.nodes[number].services.get(service) != pid or times > RESTARTS:
                del self._restarts[key]
            elif core.clock.now - sent_at >= RESTART_AGAIN_S:
                self._restarts[key] = (pid, reason, core.clock.now, times + 1)
                actions.append(_restart_order(core, number, service, pid, reason))
        return actions


def _is_replaceable(core: Core, verdict: VerdictReceived) -> bool:
    """Whether a spare could take over what is on the node."""
    node = core.fleet.nodes[verdict.node]
    return not node.ranks or core.fleet.spare_for(node.number) is not None


def _automatic_s(core: Core) -> float:
    """How long a hang may last without ``recovery.hang_act_s``."""
    limits = core.limits
    most_s = limits.group_timeout_s / 2 if core.is_on_gloo else limits.join_timeout_s
    return min(max(core.cost.usual_s, core.link_wait_s), most_s)


def _restart_order(core: Core, node: int, service: str, pid: int, reason: str) -> Send:
    return Send(
        node,
        RestartService(
            run_id=core.run_id, epoch=core.epoch, service=service, reason=reason, pid=pid
        ),
    )


def _too_late_or_early(core: Core, verdict: VerdictReceived) -> tuple[str, list[Action]] | None:
    """Return why no rank is judged now, None if one may be.

    Its generation is over, or a pause or a recovery is a good reason to make no progress.
    """
    if 0 <= verdict.generation < core.generation:
        return f"none: generation {verdict.generation} has ended", []
    if core.phase not in ("joining", "running") or core.members.num_paused:
        return "", []
    return None


def _reason(verdict: VerdictReceived) -> str:
    return f"{verdict.kind}: {verdict.detail}" if verdict.detail else verdict.kind


def _stop_run(core: Core, verdict: VerdictReceived) -> tuple[str, list[Action]]:
    if core.generation >= 0:
        return "none: the rank that fails reports it, and the crash brake counts", []
    return "stopped the run", core.finish("failed", _reason(verdict))
