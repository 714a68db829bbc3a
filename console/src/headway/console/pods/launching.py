"""Starts a run on Kubernetes: creates its objects, or completes what an earlier start has begun."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.common.errors import HeadwayError, InputError
from headway.common.node.files import replace_file
from headway.common.node.run_dir import RunDir
from headway.common.output import counted
from headway.console.folder.claim import check_name, held
from headway.console.folder.starting import STARTING
from headway.console.hints import PODS, hint
from headway.console.lifecycle.pods import new_bundle, objects_of
from headway.console.pods import rights
from headway.console.pods.kinds import CLAIM, of_name
from headway.console.pods.kubeconfig import Target, connect, with_whole_path
from headway.console.pods.leftovers import Earlier, judge
from headway.console.pods.objects import RunObjects
from headway.console.pods.run import PodsRun
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
    report: Callable[[str], None],
) -> PodsRun:
    """Start a run, or continue with the one of that name that is begun and not over.

    A start that fails deletes what it has created. One that is killed leaves objects with the
    run's id, which the next start completes, or deletes where the configuration has changed.

    Args:
        path: folder of the run on this machine.
        config: of the run.
        pods: what the pods are made of, and how the API server is reached.
        report: called with one line per stage.

    Raises:
        InputError: anything wrong that can be found before the run begins. ApiError: the API server
            does not answer, or refuses something.
    """
    check_name(path.name)
    check_label("run name", path.name)
    target = connect(pods)
    pods = dataclasses.replace(with_whole_path(pods), namespace=target.namespace)
    bundle, key = new_bundle(config, pods, path.name)
    made = objects_of(bundle, key)  # whatever can be wrong with them is found here
    try:
        with held(path):
            _check_folder(path)
            report(f"checking the rights of {target.whence} in namespace {target.namespace}")
            rights.check(target)
            _check_claim(target, pods.claim)
            start = _Start(path, RunObjects(target), pods, report)
            return start.run(bundle, made)
    finally:
        with contextlib.suppress(OSError):  # it is empty where nothing was begun
            path.rmdir()


@dataclass(frozen=True)
class _Start:
    path: Path
    objects: RunObjects
    pods: KubernetesConfig
    report: Callable[[str], None]

    def run(self, bundle: Bundle, made: list[dict[str, Any]]) -> PodsRun:
        """Create a new run, or continue with an earlier one that is the same."""
        earlier = self._earlier()
        if earlier is not None and _is_same(earlier.bundle, bundle):
            return self._adopt(earlier)
        if earlier is not None and earlier.has_job:
            raise InputError(
                f"run {self.path.name} ({earlier.run_id}) is live in namespace "
                f"{self.pods.namespace} with another configuration",
                remedy=f"end it with {hint('stop', self.path)}, or give this one another --name",
            )
        if earlier is not None:
            self.report(f"deleting what an interrupted start of run {earlier.run_id} has left")
            self.objects.delete(earlier.run_id, self.report)
        return self._create(bundle, made)

    def _earlier(self) -> Earlier | None:
        """The run of that name that is not over; the remains of others are deleted."""
        name = self.path.name
        left = judge(self.objects.find(of_name(name)))
        for run_id in left.over:
            self.report(f"deleting what run {name} ({run_id}), which is over, has left")
            self.objects.delete(run_id, self.report)
        return left.earlier

    def _adopt(self, earlier: Earlier) -> PodsRun:
        state = "is live: following it" if earlier.has_job else "was begun: creating the rest"
        self.report(f"run {self.path.name} ({earlier.run_id}) {state}")
        run = self._keep(earlier.bundle)
        self.objects.create(objects_of(earlier.bundle, earlier.console_key))
        return run

    def _create(self, bundle: Bundle, made: list[dict[str, Any]]) -> PodsRun:
        self.report(
            f"starting run {self.path.name} ({bundle.run_id}) on {counted(bundle.nodes, 'pod')}"
        )
        run = self._keep(bundle)
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
            shutil.rmtree(self.path, ignore_errors=True)

    def _keep(self, bundle: Bundle) -> PodsRun:
        """The run's folder here: it shows the run from now on, in place of an earlier one."""
        path = self.path
        if (path / PODS).exists() and _run_id(path) != bundle.run_id:
            for entry in path.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry)
                elif entry.name != STARTING:
                    entry.unlink()
        PodsRun.keep(path, self.pods)
        if not (path / "run.json").exists():
            RunDir.create(path, run_id=bundle.run_id)
        replace_file(path / "config.toml", bundle.config)
        return PodsRun(path)


def _check_folder(path: Path) -> None:
    others = [entry for entry in path.iterdir() if entry.name != STARTING]
    if others and not (path / PODS).exists():
        raise InputError(
            f"{path} holds something else than a run on Kubernetes", remedy="choose another --name"
        )


def _check_claim(target: Target, claim: str) -> None:
    """Raises InputError if the claim is certainly absent."""
    try:
        target.api.json("GET", CLAIM.path(target.namespace, claim))
    except ApiError as error:
        if error.status == 404:
            raise InputError(
                f"there is no claim {claim!r} in namespace {target.namespace}",
                remedy="create a PersistentVolumeClaim that is ReadWriteMany; see "
                "docs/howto/kubernetes.md",
            ) from None
        if error.status != 403:  # only pods must be able to use it
            raise


def _is_same(one: Bundle, other: Bundle) -> bool:
    return (one.config, one.engine, one.nodes) == (other.config, other.engine, other.nodes)


def _run_id(path: Path) -> str:
    try:
        return RunDir(path).run_id
    except (HeadwayError, OSError):
        return ""
