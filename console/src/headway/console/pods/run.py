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

FRESH_S = 0.5
"""The Job is asked for again after this long."""
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

    @property
    def num_up(self) -> int:
        """Number of pods that run."""
        return sum(state.startswith("runs") for state in self.nodes.values())

    def lines(self) -> list[str]:
        """All of it as text."""
        first = f"run {self.name}: its Job in namespace {self.namespace} is {self.state}; "
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
        self._job: tuple[float, dict[str, Any] | None] | None = None

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
        )

    def _newest_job(self) -> dict[str, Any] | None:
        now = time.monotonic()
        if self._job is None or now - self._job[0] > FRESH_S:
            [*found] = self.objects.find(of_run(self.folder.run_id), [JOB])
            self._job = (now, found[0].data if found else None)
        return self._job[1]

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
        """What was recorded at the end, else what the Job shows."""
        if known := self._record().get("outcome"):
            return str(known)
        with contextlib.suppress(HeadwayError):
            match words.of_job(self._newest_job()):
                case "failed":
                    return "failed"
                case "complete":
                    return "stopped" if self._record().get("is_to_stop") else "finished"
        return ""

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
        raise InputError(
            f"only the pods of run {self.name} reach its driver",
            remedy=f"run the command in one: `kubectl exec -n {self.pods.namespace} "
            f"job/{self.name} -- headway ...`; see docs/howto/kubernetes.md",
        )

    def status(self, *_: object, **__: object) -> NoReturn:
        """Raises InputError: only pods reach the driver."""
        self.driver()
