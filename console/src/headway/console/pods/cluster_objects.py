"""What runs on Kubernetes need before they start: a namespace and a claim, if a cluster makes them.

They carry the cluster's id as a label, so that what is left of it can be found, and another cluster
of that name keeps its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from headway.common.errors import HeadwayError, InputError
from headway.common.output import counted
from headway.common.polling import wait_until
from headway.console.pods.kinds import CLAIM, JOB, OURS, RUN_ID, of_run
from headway.console.pods.kubeconfig import Target
from headway.console.pods.objects import FORBIDDEN, NOT_FOUND, RunObjects
from headway.launch.lease.kubernetes_api import CONFLICT, ApiError

NAMESPACES = "/api/v1/namespaces"
OWNER = "app.kubernetes.io/name"
MADE_BY = "headway-cluster"
SIZE = "headway/claim-size"
"""Annotation: the size as it was asked for; the server writes 1.5Ti as 1536Gi."""
GONE_LIMIT_S = 120.0
_QUANTITY = re.compile(r"[1-9]\d*(\.\d+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?")


@dataclass(frozen=True)
class ClusterObjects:
    """What one cluster makes in a namespace. Every method may raise ApiError.

    Args:
        target: the API server and the namespace.
        cluster: the cluster's id.
        claim: name of the claim.
    """

    target: Target
    cluster: str
    claim: str

    @property
    def _labels(self) -> dict[str, str]:
        return {OWNER: MADE_BY, RUN_ID: self.cluster}

    def _namespace_path(self) -> str:
        return f"{NAMESPACES}/{self.target.namespace}"

    def _claim_path(self) -> str:
        return CLAIM.path(self.target.namespace, self.claim)

    # ---- creating -----------------------------------------------------------------------------
    def make_namespace(self) -> None:
        """Create the namespace. Raises InputError: somebody else has created it."""
        metadata = {"name": self.target.namespace, "labels": self._labels}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        self._make(NAMESPACES, body, self._namespace_path(), "leave create_namespace out")

    def make_claim(self, size: str, storage_class: str) -> None:
        """Create a claim of this size that is ReadWriteMany.

        Raises:
            InputError: somebody else has created it, or the size is not one.
        """
        if not _QUANTITY.fullmatch(size):
            raise InputError(f"claim_size={size!r} is not a size", remedy="write one such as 500Gi")
        spec: dict[str, Any] = {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": size}},
        }
        spec |= {"storageClassName": storage_class} if storage_class else {}
        notes = {SIZE: size}
        metadata = {"name": self.claim, "labels": self._labels, "annotations": notes}
        body = {"apiVersion": "v1", "kind": CLAIM.name, "metadata": metadata, "spec": spec}
        path = CLAIM.path(self.target.namespace)
        self._make(path, body, self._claim_path(), "leave claim_size out")

    def _make(self, path: str, body: dict[str, Any], mine: str, remedy: str) -> None:
        try:
            self.target.api.json("POST", path, body)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            if not self._is_mine(mine):
                name = body["metadata"]["name"]
                raise InputError(
                    f"{body['kind']} {name} exists, and this cluster has not made it",
                    remedy=f"{remedy} to use it as it is",
                ) from None

    # ---- reading ------------------------------------------------------------------------------
    def seen(self) -> dict[str, Any]:
        """Whether the namespace and the claim are there, and the size that this was made with.

        What the user may not see counts as there, or a plan would make it again.
        """
        found: dict[str, Any] = {}
        for name, path in (("namespace", self._namespace_path()), ("claim", self._claim_path())):
            try:
                one = self._get(path)
            except ApiError as error:
                if error.status != FORBIDDEN:
                    raise
                one = {"kind": "unknown"}
            found[name] = bool(one)
        notes = (one.get("metadata") or {}).get("annotations") or {}
        return found | {"claim_size": notes.get(SIZE, "")}

    def left(self) -> list[str]:
        """What the cluster has made and is still there, as ``Kind name``."""
        paths = {"Namespace": self._namespace_path(), CLAIM.name: self._claim_path()}
        mine = {kind: path for kind, path in paths.items() if self._is_mine(path)}
        return [f"{kind} {path.rpartition('/')[2]}" for kind, path in mine.items()]

    def left_of_runs(self, run_ids: Iterable[str]) -> list[str]:
        """The objects of these runs that are still there."""
        objects = RunObjects(self.target)
        return [
            f"{one} of run {run_id}" for run_id in run_ids for one in objects.find(of_run(run_id))
        ]

    def check_removable(self, *, may_delete: bool, run_ids: Collection[str] = ()) -> None:
        """Check that what this cluster has made can go without harm.

        Args:
            may_delete: the data of claims may be deleted.
            run_ids: the cluster's own runs.

        Raises:
            InputError: data would be deleted and may not, or a run of somebody else.
        """
        claims = [self.claim] if self._is_mine(self._claim_path()) else []
        if self._is_mine(self._namespace_path()):
            items = self.target.api.json("GET", CLAIM.path(self.target.namespace)).get("items")
            claims = [one["metadata"]["name"] for one in items or ()]
            jobs = RunObjects(self.target).find(OURS, [JOB])
            if others := [one.name for one in jobs if one.run_id not in run_ids]:
                raise InputError(
                    f"this deletes namespace {self.target.namespace} with {', '.join(others)}, "
                    "which this cluster has not started",
                    remedy="end these runs first: `headway stop` where they were started",
                )
        if claims and not may_delete:
            raise InputError(
                f"this deletes the data of {counted(len(claims), 'claim')}: {', '.join(claims)}",
                remedy="DELETE_CLAIM=1 confirms it",
            )

    def _get(self, path: str) -> dict[str, Any]:
        """One object; empty if there is none."""
        try:
            return self.target.api.json("GET", path)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return {}
            raise

    def _is_mine(self, path: str) -> bool:
        """Whether this cluster has made it: then its user may also see it."""
        try:
            one = self._get(path)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            return False
        labels = (one.get("metadata") or {}).get("labels") or {}
        return bool(self._labels.items() <= labels.items())

    # ---- deleting -----------------------------------------------------------------------------
    def remove_runs(self, run_ids: Iterable[str], report: Callable[[str], None]) -> None:
        """Delete what is left of runs. Raises HeadwayError if that is not possible."""
        objects = RunObjects(self.target)
        for run_id in run_ids:
            if objects.find(of_run(run_id)):
                report(f"deleting the objects of run {run_id}")
                objects.delete(run_id, report)

    def remove_namespace(self, *, may_delete: bool) -> None:
        """Delete the namespace with everything in it, if this cluster has made it.

        Raises:
            InputError: it has claims, and these may not be deleted, or a run.
        """
        self.check_removable(may_delete=may_delete)
        self._remove(self._namespace_path())

    def remove_claim(self, *, may_delete: bool) -> None:
        """Delete the claim, if this cluster has made it; the volume's policy decides on data.

        Raises:
            InputError: it may not be deleted.
        """
        if self._is_mine(self._claim_path()):
            self.check_removable(may_delete=may_delete)
            self._remove(self._claim_path())

    def _remove(self, path: str) -> None:
        if not self._is_mine(path):
            return
        try:
            self.target.api.json("DELETE", path)
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
        if not wait_until(lambda: not self._is_mine(path), GONE_LIMIT_S, every_s=0.5):
            raise HeadwayError(
                f"{path} is not gone within {GONE_LIMIT_S:.0f} s",
                remedy="see what its finalizers wait for, then repeat the command",
            )
