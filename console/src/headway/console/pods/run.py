"""A run on Kubernetes as a machine outside of the cluster sees it: through the API server."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.common.node.files import make_private_folder, replace_file, replace_json
from headway.console.folder.presence import Presence
from headway.console.hints import PODS
from headway.console.pods import words
from headway.console.pods.kinds import JOB, LEASE, POD, of_run
from headway.console.pods.kubeconfig import Target, connect
from headway.console.pods.objects import RunObjects
from headway.console.run import Run
from headway.launch.engines.choose import config_of, facts_of
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.lease.kubernetes import holder_of

FRESH_S = 0.5
"""The Job is asked for again after this long, also where the API server has not answered."""
LOG_LINES = 2000


@dataclass(frozen=True)
class PodsStatus:
    """What the API server shows of a run."""

    name: str
    run_id: str
    namespace: str
    state: str
    """``absent``, ``running``, ``complete`` or ``failed``: that of the Job."""
    nodes: dict[int, str]
    """What the pod of each node does."""
    driver: str
    """``node-K``: where the driver is, empty without one."""
    epoch: int
    """Number of drivers that have led the run."""
    reason: str = ""
    """Why the Job has failed."""
    outcome: str = ""
    """How the run has ended, as far as that is known."""

    @property
    def is_absent(self) -> bool:
        """Whether the run has no Job."""
        return self.state == "absent"

    @property
    def num_up(self) -> int:
        """Number of pods that run."""
        return sum(state.startswith("runs") for state in self.nodes.values())

    def lines(self) -> list[str]:
        """All of it as text."""
        ended = f"run {self.name} is {self.outcome}" if self.outcome else f"run {self.name}"
        if self.is_absent:
            return [f"{ended}; it has no Job in namespace {self.namespace}"]
        why = f" ({self.reason})" if self.reason else ""
        first = f"{ended}: its Job in namespace {self.namespace} is {self.state}{why}; "
        led = f"its driver is on {self.driver}, epoch {self.epoch}" if self.driver else "no driver"
        return [
            f"{first}{self.num_up} of {len(self.nodes)} pods run; {led}",
            *words.lines(self.nodes),
        ]


class PodsRun(Run):
    """A ``Run`` whose driver, journal and checkpoints only its pods reach.

    Every method of ``Run`` may also raise ApiError, when the API server does not answer.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            config = config_of(json.loads((path / PODS).read_text()))
        except (ValueError, TypeError, AttributeError) as error:
            raise CorruptError(
                f"{path / PODS} is damaged: {error}", remedy="remove the folder of the run"
            ) from error
        assert isinstance(config, KubernetesConfig)
        self.pods = config
        self._target: Target | None = None
        self._asked_s = float("-inf")
        self._job: dict[str, Any] | HeadwayError | None = None

    @classmethod
    def keep(cls, path: Path, config: KubernetesConfig) -> None:
        """Record that the run at ``path`` is on Kubernetes. Raises OSError."""
        replace_json(path / PODS, facts_of(config))

    # ---- what the API server shows --------------------------------------------------------------
    @property
    def objects(self) -> RunObjects:
        """Those of the namespace. Raises ConfigError: the kubeconfig cannot be used."""
        if self._target is None:
            self._target = connect(self.pods)
        return RunObjects(self._target)

    def look(self) -> PodsStatus:
        """Where the run stands. Raises ApiError."""
        run_id, job = self.folder.run_id, self._newest_job()
        pods = [one.data for one in self.objects.find(of_run(run_id), [POD])]
        lease = self.objects.get(LEASE, self.name) or {}
        spec = lease.get("spec") or {}
        launch = self.config.launch
        return PodsStatus(
            name=self.name,
            run_id=run_id,
            namespace=self.pods.namespace,
            state=words.of_job(job),
            nodes=words.of_nodes(pods, launch.nodes + launch.spares),
            driver=str(spec.get("holderIdentity") or ""),
            epoch=int(spec.get("leaseTransitions") or 0),
            reason=words.why_failed(job),
            outcome=self.outcome,
        )

    def _newest_job(self) -> dict[str, Any] | None:
        """None if there is none. Raises ApiError, the same one until it is asked for again."""
        if time.monotonic() - self._asked_s > FRESH_S:
            try:
                found = self.objects.find(of_run(self.folder.run_id), [JOB])
                self._job = found[0].data if found else None
            except HeadwayError as error:
                self._job = error
            self._asked_s = time.monotonic()
        if isinstance(self._job, HeadwayError):
            raise self._job
        return self._job

    @property
    def presence(self) -> Presence:
        """``silent`` while the API server does not answer."""
        try:
            state = words.of_job(self._newest_job())
        except HeadwayError:
            return "silent"
        return "led" if state == "running" else "gone"

    @property
    def outcome(self) -> str:
        """What was recorded at the end, else what the driver has left in the lease or the Job is.

        A Job is complete whatever the outcome, as its pods then end on purpose.
        """
        if known := self._record().get("outcome"):
            return str(known)
        with contextlib.suppress(HeadwayError):
            match words.of_job(self._newest_job()):
                case "failed":
                    return "failed"
                case "complete":
                    by_record = "stopped" if self.is_to_stop else "finished"
                    return self._outcome_of_lease() or by_record
        return ""

    def _outcome_of_lease(self) -> str:
        lease = self.objects.get(LEASE, self.name)
        holder = holder_of(lease) if lease is not None else None
        return holder.outcome if holder is not None else ""

    @property
    def is_to_stop(self) -> bool:
        """Whether this machine has asked it to stop."""
        return bool(self._record().get("is_to_stop"))

    @property
    def is_elsewhere(self) -> bool:
        return True

    @property
    def has_begun(self) -> bool:
        return True

    @property
    def completed_steps(self) -> int:
        """Only its pods know."""
        return 0

    def _read(self, read: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Only its pods have the journal."""
        del read, values
        return []

    def fetch_records(self) -> list[str]:
        """Copy the newest lines that each pod has printed into the run's folder."""
        troubles = []
        make_private_folder(self.folder.logs)
        for one in self.objects.find(of_run(self.folder.run_id), [POD]):
            try:
                text = self.objects.log(one.name, LOG_LINES)
            except HeadwayError as error:
                troubles.append(f"the log of pod {one.name} cannot be read: {error.message}")
                continue
            name = f"n{words.node_of(one.data)}-{one.name.rpartition('-')[2]}.log"
            replace_file(self.folder.logs / name, text)
        return troubles

    # ---- operations -----------------------------------------------------------------------------
    def command(self, operation: str, **fields: Any) -> int:
        """Carry out ``stop`` or ``evict``; all others need the driver.

        Raises:
            InputError: the node has no pod, or the operation has to be run in a pod.
        """
        self._refuse_over(operation)
        if operation == "stop":
            self.note(is_to_stop=True)
            self.objects.ask_to_stop(self.name, self.folder.run_id)
        elif operation == "evict":
            if not self.objects.evict(self.folder.run_id, fields["node"]):
                raise InputError(
                    f"node {fields['node']} of run {self.name} has no pod",
                    remedy=f"see {self.hint('status')}",
                )
        else:
            self.driver()
        return 0

    def driver(self) -> NoReturn:
        """Raises InputError: only pods reach the driver."""
        self._refuse("reach its driver")

    def refuse_records(self) -> NoReturn:
        """Raises InputError: only pods have its records."""
        self._refuse("have its records")

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"only the pods of run {self.name} {what}",
            remedy=f"run the command in one: `kubectl exec -n {self.pods.namespace} "
            f"job/{self.name} -- sh -c 'headway ... --runs-dir {self.pods.scratch}/*/runs'`; "
            "see docs/howto/kubernetes.md",
        )

    def status(self, *_: object, **__: object) -> NoReturn:
        """Raises InputError: only pods reach the driver."""
        self.driver()
