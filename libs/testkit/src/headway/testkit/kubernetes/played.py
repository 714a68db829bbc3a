"""What a cluster has beside its API server, played: its controllers, scheduler and kubelets."""

from __future__ import annotations

import contextlib
import secrets
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from headway.launch.lease.kubernetes_api import MERGE_PATCH, ApiClient, ApiError
from headway.testkit.kubernetes.served import ServedApi

INDEX = "batch.kubernetes.io/job-completion-index"
MACHINE = "machine-0"
READY = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]
RBAC = "rbac.authorization.k8s.io/v1"
RUNNING: dict[str, Any] = {"phase": "Running", "conditions": READY}


class Namespace:
    """A namespace of its own, with a claim, in which pods do what the test says.

    ``with`` it, pods that are asked to end do end, as a kubelet would have it.
    """

    OURS = "labelSelector=app.kubernetes.io/name%3Dheadway"
    KINDS: Mapping[str, str] = {
        "jobs": "batch/v1", "pods": "", "networkpolicies": "networking.k8s.io/v1",
        "rolebindings": RBAC, "roles": RBAC, "serviceaccounts": "",
        "leases": "coordination.k8s.io/v1", "secrets": "",
    }  # fmt: skip
    """Plural of each kind, with its group and version."""

    def __init__(self, api: ServedApi, name: str = "") -> None:
        self.api, self.name = api, name or f"test-{secrets.token_hex(3)}"
        self._admin = api.client()
        self.create("", "namespaces", {"kind": "Namespace", "metadata": {"name": self.name}})
        size = {"requests": {"storage": "1Gi"}}
        spec = {"accessModes": ["ReadWriteMany"], "resources": size}
        claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec}
        self.create(self._path("persistentvolumeclaims"), "", claim)
        self.ends_pods = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._end_pods, daemon=True)

    def __enter__(self) -> Namespace:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(30)

    def _path(self, plural: str, name: str = "", group: str = "") -> str:
        root = f"/apis/{group}" if group else "/api/v1"
        return f"{root}/namespaces/{self.name}/{plural}" + (f"/{name}" if name else "")

    def create(self, path: str, plural: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object, as the administrator."""
        return self._admin.json("POST", path or f"/api/v1/{plural}", {"apiVersion": "v1", **body})

    def everything(self) -> list[str]:
        """Every object of ours in the namespace, as ``plural/name``."""
        return ["/".join(one["path"].rsplit("/", 2)[-2:]) for one in self.objects()]

    def objects(self) -> list[dict[str, Any]]:
        """Every object of ours in the namespace, with its path as ``path``."""
        found = []
        for kind, group in self.KINDS.items():
            path = self._path(kind, group=group)
            items = self._admin.json("GET", f"{path}?{self.OURS}")["items"]
            found += [{**one, "path": f"{path}/{one['metadata']['name']}"} for one in items]
        return found

    def collect_garbage(self) -> None:
        """What the controller of this name does: delete objects whose owners are all gone."""
        found, options = self.objects(), {"propagationPolicy": "Background"}
        uids = {one["metadata"]["uid"] for one in found}
        for one in found:
            owners = {owner["uid"] for owner in one["metadata"].get("ownerReferences", [])}
            if owners and not owners & uids:
                self._admin.json("DELETE", one["path"], options)

    # ---- rights -------------------------------------------------------------------------------
    def grant(self, user: str, rules: list[dict[str, Any]]) -> None:
        """Give a user of the API these rights in the namespace."""
        group = "rbac.authorization.k8s.io"
        path = f"/apis/{group}/v1/namespaces/{self.name}"
        version = {"apiVersion": f"{group}/v1", "metadata": {"name": user}}
        self.create(f"{path}/roles", "", {**version, "kind": "Role", "rules": rules})
        binding = {
            "roleRef": {"apiGroup": group, "kind": "Role", "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
        self.create(f"{path}/rolebindings", "", {**version, "kind": "RoleBinding", **binding})

    def token_of(self, account: str) -> str:
        """A token of a ServiceAccount, as a pod gets it."""
        path = self._path("serviceaccounts", f"{account}/token")
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 600},
        }
        return str(self._admin.json("POST", path, body)["status"]["token"])

    # ---- pods ---------------------------------------------------------------------------------
    def start_pod(self, job: str, index: int, status: Mapping[str, Any] | None = None) -> str:
        """What the controller of an indexed Job does: create the pod of one index."""
        found = self._admin.json("GET", self._path("jobs", job, "batch/v1"))
        template = found["spec"]["template"]
        metadata = {
            **template["metadata"],
            "name": f"{job}-{index}-{secrets.token_hex(3)[:5]}",
            "annotations": {INDEX: str(index)},
        }
        spec = {**template["spec"], "nodeName": MACHINE, "hostname": f"{job}-{index}"}
        self.create(self._path("pods"), "", {"kind": "Pod", "metadata": metadata, "spec": spec})
        self.set_status(metadata["name"], RUNNING if status is None else status)
        return str(metadata["name"])

    def set_status(self, pod: str, status: Mapping[str, Any]) -> None:
        """What a kubelet reports of a pod."""
        path = self._path("pods", f"{pod}/status")
        self._admin.json("PATCH", path, {"status": dict(status)}, media=MERGE_PATCH)

    def end_job(self, job: str, kind: str = "Complete") -> None:
        """What the controller writes once the Job is over: ``Complete`` or ``Failed``."""
        condition = {"type": kind, "status": "True", "reason": "played", "message": "by a test"}
        path = self._path("jobs", f"{job}/status", "batch/v1")
        body = {"status": {"conditions": [condition]}}
        self._admin.json("PATCH", path, body, media=MERGE_PATCH)

    def pods(self) -> dict[str, dict[str, Any]]:
        """Every pod by name."""
        found = self._admin.json("GET", self._path("pods"))
        return {one["metadata"]["name"]: one for one in found["items"]}

    def _end_pods(self) -> None:
        """Remove pods that have been asked to end: a kubelet does so once they have ended."""
        while not self._over.wait(0.1):
            with contextlib.suppress(ApiError):
                for name, pod in self.pods().items():
                    if self.ends_pods and pod["metadata"].get("deletionTimestamp"):
                        self._admin.json(
                            "DELETE", self._path("pods", name), {"gracePeriodSeconds": 0}
                        )


class Kubelet:
    """The HTTPS endpoint of a machine from which the API server reads the logs of pods."""

    def __init__(self, api: ServedApi, logs: Mapping[str, str]) -> None:
        """``logs``: by the name of the pod."""
        handler = type("Handler", (_Logs,), {"logs": logs})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate, key = api.authority.issue("kubelet", "/CN=kubelet", address="127.0.0.1")
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._register(api.client(), self._server.server_port)

    @staticmethod
    def _register(admin: ApiClient, port: int) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": MACHINE}}
        admin.json("POST", "/api/v1/nodes", node)
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        path = f"/api/v1/nodes/{MACHINE}/status"
        admin.json("PATCH", path, {"status": status}, media=MERGE_PATCH)

    def __enter__(self) -> Kubelet:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Logs(BaseHTTPRequestHandler):
    logs: Mapping[str, str]

    def do_GET(self) -> None:
        """``/containerLogs/NAMESPACE/POD/CONTAINER``."""
        text = self.logs.get(self.path.split("/")[3], "").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Write nothing."""
