"""The kinds of objects that make a run on Kubernetes: their paths, and what is done with them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlencode

RUN_ID, RUN_NAME = "app.kubernetes.io/instance", "app.kubernetes.io/part-of"
"""Labels of every object, which ``headway.launch.engines.kubernetes.render`` writes."""
OURS = "app.kubernetes.io/name=headway"
PODS = "pods"


@dataclass(frozen=True)
class Kind:
    """One kind of object of the API."""

    name: str
    group: str
    version: str
    plural: str

    def path(self, namespace: str, name: str = "", **query: str) -> str:
        """The path of all objects of a namespace, or of the one with this name."""
        root = f"/apis/{self.group}" if self.group else "/api"
        path = f"{root}/{self.version}/namespaces/{quote(namespace)}/{self.plural}"
        path += f"/{quote(name)}" if name else ""
        return f"{path}?{urlencode(query)}" if query else path


def _kind(name: str, group: str = "", version: str = "v1") -> Kind:
    plural = "networkpolicies" if name == "NetworkPolicy" else f"{name.lower()}s"
    return Kind(name, group, version, plural)


JOB, POD = _kind("Job", "batch"), _kind("Pod")
SECRET, LEASE = _kind("Secret"), _kind("Lease", "coordination.k8s.io")
_RBAC = "rbac.authorization.k8s.io"
IN_ORDER = (
    JOB,
    POD,
    _kind("NetworkPolicy", "networking.k8s.io"),
    _kind("RoleBinding", _RBAC),
    _kind("Role", _RBAC),
    _kind("ServiceAccount"),
    LEASE,
    SECRET,
)
"""The order of deletion: the Job first, so that no pod is started again; what a pod needs while it
ends after the pods; and the Secret last, since it shows which run the others belong to."""
CLAIM = Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims")
"""Not an object of a run: it holds the checkpoints of many."""
BY_NAME = {kind.name: kind for kind in IN_ORDER}


def of_run(run_id: str) -> str:
    """The label selector of one run's objects."""
    return f"{OURS},{RUN_ID}={run_id}"


def of_name(name: str) -> str:
    """The label selector of the objects of every run of that name."""
    return f"{OURS},{RUN_NAME}={name}"
