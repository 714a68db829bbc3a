"""The folder on this machine of a run on Kubernetes: which run it shows, and where that is."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

from headway.common.errors import HeadwayError, InputError
from headway.common.node.files import make_private_folder, replace_file
from headway.common.node.run_dir import RunDir
from headway.console.folder.starting import STARTING
from headway.console.hints import PODS, hint
from headway.console.pods.kinds import of_run
from headway.console.pods.run import PodsRun
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.join.bundle import Bundle

EARLIER = "earlier"
"""Folder in a run's folder with those of earlier runs of the name, by their id."""


def check_folder(path: Path) -> None:
    """Raises InputError if ``path`` holds something else than a run on Kubernetes."""
    others = [entry for entry in path.iterdir() if entry.name not in (STARTING, EARLIER)]
    if others and not (path / PODS).exists():
        raise InputError(
            f"{path} holds something else than a run on Kubernetes", remedy="choose another --name"
        )


def run_in(path: Path) -> PodsRun | None:
    """The run that the folder shows, if any. Raises CorruptError: it is damaged."""
    return PodsRun(path) if (path / PODS).exists() and (path / "run.json").exists() else None


def asked_as_before(path: Path, pods: KubernetesConfig) -> KubernetesConfig:
    """Where the folder's run is not over, look for it where it was started.

    What ``pods`` leaves open is then not what the environment and the current context say now.
    """
    run = run_in(path)
    if run is None or _is_over(run):
        return pods
    before = run.pods
    named = pods.kubeconfig and str(Path(pods.kubeconfig).expanduser().resolve())
    if named not in ("", before.kubeconfig) or pods.context not in ("", before.context):
        return pods
    return dataclasses.replace(
        pods,
        kubeconfig=before.kubeconfig,
        context=before.context,
        namespace=pods.namespace or before.namespace,
        server=pods.server or before.server,
    )


def check_same_place(path: Path, pods: KubernetesConfig) -> None:
    """Check that the folder is not that of a run in another place, which it would lose.

    Raises:
        InputError: such a run has objects, or cannot be looked at.
    """
    run = run_in(path)
    if run is None or not run.pods.server:  # that of a version that kept no server
        return
    before = run.pods
    if (before.server, before.namespace) == (pods.server, pods.namespace):
        return
    try:
        state = "is" if run.objects.find(of_run(run.folder.run_id)) else ""
    except HeadwayError as error:
        state = "" if _is_over(run) else f"may be ({error.message})"
    if state:
        raise InputError(
            f"run {path.name} ({run.folder.run_id}) {state} in namespace {before.namespace} of "
            f"{before.server}",
            remedy=f"end it with {hint('stop', path)}, or give this one another --name",
        )


def keep(path: Path, pods: KubernetesConfig, bundle: Bundle) -> PodsRun:
    """Have the folder show the run of ``bundle``; what an earlier run has left is moved aside."""
    before = _run_id(path)
    if (path / PODS).exists() and before != bundle.run_id:
        aside = path / EARLIER / (before or "unknown")
        shutil.rmtree(aside, ignore_errors=True)
        make_private_folder(aside)
        # the last is the one by which an interrupted move is found
        for entry in sorted(path.iterdir(), key=lambda one: one.name == PODS):
            if entry.name not in (STARTING, EARLIER):
                entry.rename(aside / entry.name)
    PodsRun.keep(path, pods)
    if not (path / "run.json").exists():
        RunDir.create(path, run_id=bundle.run_id)
    replace_file(path / "config.toml", bundle.config)
    return PodsRun(path)


def forget(path: Path) -> None:
    """Remove what ``keep`` has written; an earlier run's folder takes its place again."""
    aside = path / EARLIER
    for entry in path.iterdir():
        if entry.name not in (STARTING, EARLIER):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if not aside.is_dir():
        return
    newest = max(aside.iterdir(), key=lambda one: one.stat().st_mtime)
    for entry in newest.iterdir():
        entry.rename(path / entry.name)
    newest.rmdir()
    if not any(aside.iterdir()):
        aside.rmdir()


def _is_over(run: PodsRun) -> bool:
    """Whether its end was recorded; the deletion of its objects may have been interrupted."""
    return bool(json.loads(run.folder.run_json.read_text()).get("outcome"))


def _run_id(path: Path) -> str:
    try:
        return RunDir(path).run_id
    except (HeadwayError, OSError):
        return ""
