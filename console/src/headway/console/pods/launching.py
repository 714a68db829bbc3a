"""Starts a run on Kubernetes: creates its objects, or completes what an earlier start has begun."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.common.errors import HeadwayError, InputError
from headway.common.output import counted
from headway.console.folder.claim import check_name, held
from headway.console.hints import hint
from headway.console.pods import rights
from headway.console.pods.ending import conclude
from headway.console.pods.kinds import CLAIM, of_name
from headway.console.pods.kubeconfig import Target, connect, with_whole_path
from headway.console.pods.leftovers import OVER, Earlier, judge
from headway.console.pods.manifests import new_bundle, objects_of
from headway.console.pods.objects import FORBIDDEN, NOT_FOUND, RunObjects, StoppedError
from headway.console.pods.run import PodsRun
from headway.console.pods.run_folder import (
    asked_as_before,
    check_folder,
    check_same_place,
    forget,
    keep,
    run_in,
)
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.engines.kubernetes.config import check_name as check_label
from headway.launch.join.bundle import Bundle
from headway.launch.lease.kubernetes_api import ApiError
from headway.trainer.config import RunConfig


def launch_on_pods(
    path: Path,
    config: RunConfig,
    pods: KubernetesConfig,
    *,
    begun: Callable[[PodsRun], None],
    report: Callable[[str], None],
) -> PodsRun:
    """Start a run, or continue with the one of that name that is begun and not over.

    A start that fails deletes what it has created. One that is killed leaves objects with the
    run's id, which the next start completes, or deletes where the configuration has changed.

    Args:
        path: folder of the run on this machine.
        config: of the run.
        pods: what the pods are made of, and how the API server is reached.
        begun: called with the run before it has an object.
        report: called with one line per stage.

    Raises:
        InputError: anything wrong that can be found before the run begins. ApiError: the API server
            does not answer, or refuses something.
    """
    check_name(path.name)
    check_label("run name", path.name)
    pods = with_whole_path(asked_as_before(path, pods))
    target = connect(pods)
    target.api.be_patient()
    bundle, key = new_bundle(config, pods, path.name)
    made = objects_of(bundle, key)  # whatever can be wrong with them is found here
    try:
        with held(path):
            check_folder(path)
            check_same_place(path, pods)
            report(f"checking the rights of {target.source} in namespace {target.namespace}")
            rights.check(target)
            _check_claim(target, pods.claim)
            start = _Start(path, RunObjects(target), pods, begun, report)
            return start.run(bundle, made)
    finally:
        with contextlib.suppress(OSError):  # it is empty where nothing was begun
            path.rmdir()


@dataclass(frozen=True)
class _Start:
    path: Path
    objects: RunObjects
    pods: KubernetesConfig
    begun: Callable[[PodsRun], None]
    report: Callable[[str], None]

    def run(self, bundle: Bundle, made: list[dict[str, Any]]) -> PodsRun:
        """Create a new run, or continue with an earlier one that is the same."""
        earlier = self._earlier()
        if earlier is not None and _is_same(earlier.bundle, bundle):
            return self._adopt(earlier)
        if earlier is not None and earlier.job == "running":
            raise InputError(
                f"run {self.path.name} ({earlier.run_id}) is live in namespace "
                f"{self.pods.namespace} with another configuration",
                remedy=f"end it with {hint('stop', self.path)}, or give this one another --name",
            )
        self._check_not_finished()
        if earlier is not None:
            self.report(f"deleting what an interrupted start of run {earlier.run_id} has left")
            self.objects.delete(earlier.run_id, self.report)
        return self._create(bundle, made)

    def _earlier(self) -> Earlier | None:
        """The run of that name that is not over; those that are over are concluded."""
        name = self.path.name
        left = judge(self.objects.find(of_name(name)))
        for run_id in left.remains:
            self.report(f"deleting what run {name} ({run_id}), which is over, has left")
            self.objects.delete(run_id, self.report)
        if left.earlier is None or left.earlier.job not in OVER:
            return left.earlier
        run = keep(self.path, self.pods, left.earlier.bundle)
        self.report(f"run {name} ({left.earlier.run_id}) is {run.outcome}")
        conclude(run, self.report, "stopped")
        return None

    def _check_not_finished(self) -> None:
        """Raises InputError, as for runs on other machines, if the name's run has finished."""
        run = run_in(self.path)
        if run is not None and run.outcome == "finished":
            raise InputError(
                f"run name {self.path.name!r} is taken by a finished run",
                remedy="choose another --name",
            )

    def _adopt(self, earlier: Earlier) -> PodsRun:
        is_live = earlier.job == "running"
        state = "is live: following it" if is_live else "was begun: creating the rest"
        self.report(f"run {self.path.name} ({earlier.run_id}) {state}")
        run = keep(self.path, self.pods, earlier.bundle)
        self.begun(run)
        made = objects_of(earlier.bundle, earlier.console_key)
        try:
            self.objects.create(made, owner=earlier.secret_uid)
        except StoppedError:
            self.objects.delete(earlier.run_id, self.report)
            raise
        return run

    def _create(self, bundle: Bundle, made: list[dict[str, Any]]) -> PodsRun:
        name = self.path.name
        self.report(f"starting run {name} ({bundle.run_id}) on {counted(bundle.nodes, 'pod')}")
        if (before := run_in(self.path)) is not None and before.outcome:
            self.report(
                f"it begins at step 0: run {before.folder.run_id} before it is {before.outcome}, "
                f"and its checkpoints stay on the claim in {name}-{before.folder.run_id}"
            )
        run = keep(self.path, self.pods, bundle)
        self.begun(run)
        try:
            self.objects.create(made)
        except BaseException:  # Ctrl-C too
            self._undo(bundle)
            raise
        return run

    def _undo(self, bundle: Bundle) -> None:
        """Leave nothing of a start that failed, whose error is what the user has to see."""
        try:
            self.objects.delete(bundle.run_id, self.report)
        except HeadwayError as error:
            self.report(f"objects of run {bundle.run_id} may be left: {error.message}")
        else:
            forget(self.path)


def _check_claim(target: Target, claim: str) -> None:
    """Raises InputError if the claim is certainly absent."""
    try:
        target.api.json("GET", CLAIM.path(target.namespace, claim))
    except ApiError as error:
        if error.status == NOT_FOUND:
            raise InputError(
                f"claim {claim!r} does not exist in namespace {target.namespace}",
                remedy="create a PersistentVolumeClaim that is ReadWriteMany; see "
                "docs/howto/kubernetes.md",
            ) from None
        if error.status != FORBIDDEN:  # only pods must be able to use it
            raise


def _is_same(one: Bundle, other: Bundle) -> bool:
    return (one.config, one.engine, one.nodes) == (other.config, other.engine, other.nodes)
