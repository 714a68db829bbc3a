"""The driver's lease as a Lease object of Kubernetes, which all pods of a run reach."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headway.common.config import from_dict
from headway.common.errors import ConfigError, InputError
from headway.common.node.files import replace_json
from headway.launch.lease.base import Holder, LeaseView, ProcessLease, superseded
from headway.launch.lease.kubernetes_api import ApiClient, ApiError, ApiObject, PodAccount

API_VERSION, KIND, GROUP = "coordination.k8s.io/v1", "Lease", "coordination.k8s.io"
HOLDER = "headway/holder"
"""Annotation with the holder as JSON."""
STOP = "headway/stop"
"""Annotation by which a console says that the whole run is to stop."""
FILE = "lease.json"
"""In the control folder of a run whose lease is such an object; see ``LeaseName``."""
LOOK_S = 1.0
CALM_LOOK_S = 10.0
_PUT_TRIES = 5


@dataclass(frozen=True)
class LeaseName:
    """Where the object is, the same for every pod of the run."""

    server: str
    """``https://HOST[:PORT]``."""
    namespace: str
    name: str
    account: str
    """Folder of the ServiceAccount in each pod: ``token``, ``ca.crt``, ``namespace``."""

    def save(self, control: Path) -> None:
        """Raises OSError."""
        replace_json(control / FILE, asdict(self))

    @classmethod
    def load(cls, control: Path) -> LeaseName | None:
        """None where the folder keeps its lease itself.

        Raises:
            InputError: the file is damaged. OSError: it cannot be read.
        """
        path = control / FILE
        try:
            found = from_dict(cls, json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ConfigError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} does not name a lease: {error}",
                remedy="delete any pod of the run: its replacement rewrites the file",
            ) from error
        return found

    def lease(self, fence_elsewhere: Callable[[Holder], bool]) -> ApiLease:
        """Return the lease, which only the run's pods reach.

        Raises:
            InputError: this is not a pod.
        """
        account = Path(self.account)
        if not account.is_dir():
            raise InputError(
                f"the lease of run {self.name} is kept by Kubernetes, and this is not one of the "
                f"run's pods: {account} does not exist",
                remedy="run the command in a pod, with `kubectl exec`",
            )
        path = f"/apis/{API_VERSION}/namespaces/{self.namespace}/leases/{self.name}"
        client = ApiClient(self.server, PodAccount(account))
        return ApiLease(ApiObject(client, path), fence_elsewhere)


class ApiLease(ProcessLease):
    """The driver's lease as an object of the API of Kubernetes.

    ``spec.leaseTransitions`` is the newest claimed epoch, the annotation ``headway/holder`` the
    holder. Each write names the version that it replaces, so that of two claimants one succeeds,
    and a superseded holder learns it by a conflict. ``spec.holderIdentity`` and ``spec.renewTime``
    are for people; the time is never compared.

    Every method may raise ApiError, which is an OSError. A claim or renewal that raised may have
    been made.
    """

    look_s = LOOK_S
    calm_look_s = CALM_LOOK_S

    def __init__(
        self, kept: ApiObject, fence_elsewhere: Callable[[Holder], bool] = lambda _: True
    ) -> None:
        super().__init__(fence_elsewhere)
        self._object = kept
        self._written: dict[str, Any] | None = None
        """The object as the last renewal left it, so that the next renewal need not read it."""

    def look(self) -> LeaseView:
        """See ``Lease``; without a holder while the annotation cannot be read."""
        found = self._object.get()
        holder = holder_of(found)
        claimed = max(_claimed(found), holder.epoch if holder is not None else 0)
        return LeaseView(claimed, holder, STOP in _part(found["metadata"], "annotations"))

    def claim(self, after: int) -> int | None:
        """See ``Lease``."""
        found = self._object.get()
        if _claimed(found) > after:
            return None
        found["spec"] = {**_part(found, "spec"), "leaseTransitions": after + 1}
        return after + 1 if self._object.put(found) is not None else None

    def publish(self, me: Holder) -> None:
        """See ``Lease``."""
        found, self._written = self._written, None
        for attempt in range(_PUT_TRIES):
            found = self._object.get() if found is None else found
            newest, other = _claimed(found), holder_of(found)
            if newest > me.epoch:
                raise superseded(me.epoch, newest)
            is_late = other is not None and (other.epoch, other.beat) > (me.epoch, me.beat)
            if attempt and is_late:
                return  # a later renewal of this holder was faster
            kept = self._object.put(_renewed(found, me))
            if kept is not None:
                self._written = kept
                return
            found = None
        raise ApiError(f"the lease was changed by others {_PUT_TRIES} times while it was renewed")


def _renewed(found: dict[str, Any], me: Holder) -> dict[str, Any]:
    metadata = found["metadata"]
    marks = {**_part(metadata, "annotations"), HOLDER: json.dumps(asdict(me))}
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    spec = {
        **_part(found, "spec"),
        "leaseTransitions": max(_claimed(found), me.epoch),
        "holderIdentity": f"node-{me.node}",
        "renewTime": now.replace("+00:00", "Z"),
    }
    return {**found, "metadata": {**metadata, "annotations": marks}, "spec": spec}


def _claimed(found: dict[str, Any]) -> int:
    number = _part(found, "spec").get("leaseTransitions", 0)
    if type(number) is not int or number < 0:
        raise ApiError(f"the Lease object has leaseTransitions={str(number)[:40]!r}")
    return number


def holder_of(found: dict[str, Any]) -> Holder | None:
    """The holder that a Lease object names; None while its annotation cannot be read."""
    try:
        return from_dict(Holder, json.loads(_part(found["metadata"], "annotations")[HOLDER]))
    except (ConfigError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _part(of: dict[str, Any], name: str) -> dict[str, Any]:
    part = of.get(name)
    if part is not None and not isinstance(part, dict):
        raise ApiError(f"the Lease object has {name}={str(part)[:40]!r}")
    return part or {}
