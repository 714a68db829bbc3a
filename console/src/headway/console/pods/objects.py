"""Creates, finds and deletes the objects of a run, in an order that can be interrupted anywhere.

Every object carries the run's id as a label, so that what an interrupted command has left is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headway.common.errors import HeadwayError, InputError
from headway.common.output import counted
from headway.common.polling import wait_until
from headway.console.pods import words
from headway.console.pods.kinds import (
    BY_NAME,
    IN_ORDER,
    JOB,
    LEASE,
    POD,
    RUN_ID,
    SECRET,
    Kind,
    of_run,
)
from headway.console.pods.kubeconfig import Target
from headway.launch.lease.kubernetes import STOP
from headway.launch.lease.kubernetes_api import CONFLICT, MERGE_PATCH, ApiError

NOT_FOUND, FORBIDDEN = 404, 403
ENDING = "headway/ending"
"""Annotation of the Secret of a run whose objects are being deleted."""
PODS_LIMIT_S = 90.0
GONE_LIMIT_S = 15.0
LOOK_S = 0.5
CREATE_TRIES = 3
PAGE = 100
"""Number of objects of one answer of a list."""


@dataclass(frozen=True)
class Found:
    """An object of a run, as a list shows it."""

    kind: Kind
    name: str
    run_id: str
    uid: str
    data: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.kind.name} {self.name}"


class StoppedError(InputError):
    """A run was ended by another command while this one created its objects."""


class RunObjects:
    """The objects of runs in one namespace. Every method may raise ApiError."""

    def __init__(self, target: Target) -> None:
        self._api, self._namespace = target.api, target.namespace

    def be_patient(self) -> None:
        """Try each request for longer from now on, as starts and deletions do."""
        self._api.be_patient()

    # ---- reading ------------------------------------------------------------------------------
    def find(self, selector: str, kinds: Iterable[Kind] = IN_ORDER) -> list[Found]:
        """The objects that a label selector names, in the order in which they are deleted."""
        return [one for kind in kinds for one in self._list(kind, selector)]

    def _list(self, kind: Kind, selector: str) -> list[Found]:
        found, more = list[Found](), ""
        while True:
            query = {"labelSelector": selector, "limit": str(PAGE)}
            query |= {"continue": more} if more else {}
            answer = self._api.json("GET", kind.path(self._namespace, **query))
            found += [_found(kind, one) for one in answer.get("items") or ()]
            more = str((answer.get("metadata") or {}).get("continue") or "")
            if not more:
                return found

    def get(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """One object; None if there is none."""
        try:
            return self._api.json("GET", kind.path(self._namespace, name))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def log(self, pod: str, lines: int) -> str:
        """The last lines that a pod has printed."""
        path = Kind("Pod", "", "v1", f"pods/{pod}/log").path(self._namespace)
        return self._api.text(f"{path}?container=node&tailLines={lines}")

    # ---- creating -----------------------------------------------------------------------------
    def create(self, objects: Sequence[dict[str, Any]], *, owner: str = "") -> None:
        """Create what is not there yet, in this order: the Secret first, the Job last.

        The Secret owns all others, so that Kubernetes removes what is created after its deletion.

        Args:
            objects: of one run.
            owner: uid of the Secret, where it is there already.

        Raises:
            StoppedError: the run was ended meanwhile; something may be left.
            InputError: another run, or somebody else, has an object of that name; or the namespace
                does not exist.
        """
        for one in objects:
            if one["kind"] != SECRET.name:
                self._create(_owned(one, objects[0]["metadata"]["name"], owner))
            elif not owner:
                owner = self._create(one)
        self._check_begun(objects[0]["metadata"], owner)

    def _create(self, one: dict[str, Any]) -> str:
        """Create an object, or find the run's own; returns its uid."""
        kind, metadata = BY_NAME[one["kind"]], one["metadata"]
        for _ in range(CREATE_TRIES):
            try:
                made = self._api.json("POST", kind.path(self._namespace), one)
                return str(made["metadata"]["uid"])
            except ApiError as error:
                if error.status == NOT_FOUND:
                    raise InputError(
                        f"cannot create the {kind.name} in namespace {self._namespace}: "
                        f"{error.words or 'it does not exist'}",
                        remedy=f"create it: `kubectl create namespace {self._namespace}`",
                    ) from None
                if error.status != CONFLICT:
                    raise
            if uid := self._uid_of_own(kind, metadata["name"], metadata["labels"][RUN_ID]):
                return uid
        raise _stopped(metadata)  # each time it was gone again before it was looked at

    def _uid_of_own(self, kind: Kind, name: str, run_id: str) -> str:
        """The uid of a run's object; empty if there is none of that name.

        Raises:
            InputError: it belongs to another run, or to somebody else.
        """
        path = kind.path(self._namespace, fieldSelector=f"metadata.name={name}")
        there = self._api.json("GET", path).get("items")
        if not there:
            return ""
        found = _found(kind, there[0])
        if found.run_id != run_id:
            owner = f"run {found.run_id}" if found.run_id else "somebody else"
            raise InputError(
                f"{kind.name} {name} exists in namespace {self._namespace} and belongs to {owner}",
                remedy="give the run another --name",
            )
        return found.uid

    def _check_begun(self, metadata: dict[str, Any], uid: str) -> None:
        """Raises StoppedError unless the Secret is there and no deletion was begun."""
        secret = (self.get(SECRET, metadata["name"]) or {}).get("metadata") or {}
        if secret.get("uid") != uid or ENDING in (secret.get("annotations") or {}):
            raise _stopped(metadata)

    # ---- steering -----------------------------------------------------------------------------
    def annotate(self, kind: Kind, name: str, key: str) -> bool:
        """Give an object an annotation; False if it does not exist."""
        patch = {"metadata": {"annotations": {key: "true"}}}
        path = kind.path(self._namespace, name)
        try:
            self._api.json("PATCH", path, patch, media=MERGE_PATCH)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return False
            raise
        return True

    def ask_to_stop(self, name: str, run_id: str) -> None:
        """Have a run stop with a checkpoint, by way of the pod of its last node.

        A pod that is being ended asks the driver for what the lease says. The last node is a spare
        if there is one.
        """
        self.annotate(LEASE, name, STOP)
        pods = [one for one in self._list(POD, of_run(run_id)) if words.is_up(one.data)]
        if pods:
            self._delete(max(pods, key=lambda one: words.node_of(one.data)))

    def evict(self, run_id: str, node: int) -> list[str]:
        """Delete the pods of a node; returns their names."""
        pods = [one for one in self._list(POD, of_run(run_id)) if words.node_of(one.data) == node]
        for one in pods:
            self._delete(one)
        return [one.name for one in pods]

    # ---- deleting -----------------------------------------------------------------------------
    def delete(self, run_id: str, report: Callable[[str], None]) -> None:
        """Delete every object of a run, and return when none is left.

        Raises:
            HeadwayError: a pod has not ended, or something is left.
        """
        selector = of_run(run_id)
        for secret in self._list(SECRET, selector):
            self.annotate(SECRET, secret.name, ENDING)
        for kind in IN_ORDER:
            for one in self._list(kind, selector):
                self._delete(one)
            if kind == POD:
                self._wait_for_pods(selector, report)
        if not wait_until(lambda: not self.find(selector), GONE_LIMIT_S, every_s=LOOK_S):
            left = ", ".join(map(str, self.find(selector)))
            raise HeadwayError(
                f"objects of run {run_id} are left in namespace {self._namespace}: {left}",
                remedy=f"see `kubectl get all -l {RUN_ID}={run_id}`, then repeat the command",
            )

    def _delete(self, one: Found) -> None:
        """Delete that very object, and not a newer one of its name."""
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": one.uid},
        }
        if one.kind == JOB:
            options["propagationPolicy"] = "Background"
        try:
            self._api.json("DELETE", one.kind.path(self._namespace, one.name), options)
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    def _wait_for_pods(self, selector: str, report: Callable[[str], None]) -> None:
        said = 0

        def is_none_left() -> bool:
            nonlocal said
            left = self._list(POD, selector)
            if left and len(left) != said:
                said = len(left)
                report(f"waiting for {counted(said, 'pod')} to end")
            return not left

        if not wait_until(is_none_left, PODS_LIMIT_S, every_s=LOOK_S):
            names = ", ".join(one.name for one in self._list(POD, selector))
            raise HeadwayError(
                f"pods have not ended within {PODS_LIMIT_S:.0f} s: {names}",
                remedy="where a machine is certainly off, `kubectl delete pod --force` removes "
                "its pod; then repeat the command",
            )


def _owned(one: dict[str, Any], secret: str, uid: str) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": SECRET.name, "name": secret, "uid": uid}
    return {**one, "metadata": {**one["metadata"], "ownerReferences": [owner]}}


def _stopped(metadata: dict[str, Any]) -> StoppedError:
    return StoppedError(
        f"run {metadata['name']} ({metadata['labels'][RUN_ID]}) was stopped while it was being "
        "started",
        remedy="start it again if it is to run",
    )


def _found(kind: Kind, data: dict[str, Any]) -> Found:
    metadata = data["metadata"]
    run_id = (metadata.get("labels") or {}).get(RUN_ID, "")
    return Found(kind, metadata["name"], run_id, metadata["uid"], data)
