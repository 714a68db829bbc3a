"""A stand-in for the API server of Kubernetes: Lease objects over HTTPS, and ways to fail.

``python -m headway.testkit.played.kubernetes_api FOLDER HOST PORT NAMESPACE NAME`` serves one
Lease from another machine, until it is ended.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import ssl
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 422: "Invalid"}
BODIES = {
    "garbage": b"<html>",
    "list": b"[]",
    "bare": b'{"metadata": {}}',
    "deep": b"[" * 100_000,
    "huge": b'{"a": "' + b"x" * (2 << 20) + b'"}',
}
"""Fault -> what is answered with status 200."""


@dataclass
class KubernetesApi:
    """``with KubernetesApi(folder) as api: api.add("train", "tiny")``.

    Of the conventions of the real one it keeps: a bearer token; a new ``resourceVersion`` at each
    change and none where nothing changed; an update must name the current one; objects are not made
    by an update; errors are Status objects.
    """

    folder: Path
    """Exists; ``account`` in it is what a pod finds of its ServiceAccount."""
    host: str = "127.0.0.1"
    port: int = 0
    namespace: str = "train"
    fault: str = ""
    """``hang``, ``drip``, ``redirect``, a key of ``BODIES``, or a status such as ``500``."""
    requests: list[str] = field(default_factory=list)
    """Method and path of each."""
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By path."""

    def __post_init__(self) -> None:
        self.account = self.folder / "account"
        self.account.mkdir()
        (self.account / "namespace").write_text(self.namespace)
        self._make_certificate()
        self.rotate()
        self._version = 100
        self._lock, self._over = threading.Lock(), threading.Event()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """For ``KubernetesConfig.api``."""
        return f"https://{self.host}:{self.port}"

    def rotate(self) -> None:
        """Another token in the account; the one before is refused."""
        self.token = secrets.token_hex(16)
        (self.account / "token").write_text(self.token)

    def add(self, name: str) -> dict[str, Any]:
        """Apply a Lease without a spec; returns the object."""
        metadata = {"name": name, "namespace": self.namespace, "uid": secrets.token_hex(8)}
        made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self.objects[LEASES.format(self.namespace, name)] = made
        return made

    # ---- up and down --------------------------------------------------------------------------
    def start(self) -> None:
        """Listen, on the same port as before."""
        handler = type("Handler", (_Handler,), {"api": self})
        server = ThreadingHTTPServer((self.host, self.port), handler)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.account / "ca.crt", self.folder / "server.key")
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port, self._server = server.server_port, server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> KubernetesApi:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._over.set()  # answers that hang
        self.stop()

    def _make_certificate(self) -> None:
        words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        words += ["-nodes", "-days", "2", "-subj", "/CN=stand-in", "-keyout"]
        words += [str(self.folder / "server.key"), "-out", str(self.account / "ca.crt")]
        words += ["-addext", f"subjectAltName=IP:{self.host}"]
        subprocess.run(words, check=True, capture_output=True)

    # ---- requests -----------------------------------------------------------------------------
    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        with self._lock:
            found = self.objects.get(path)
            return (200, found) if found is not None else status(404)

    def put(self, path: str, new: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        with self._lock:
            old = self.objects.get(path)
            if old is None:
                return status(404)
            given = new["metadata"].get("resourceVersion")
            if not given or new["metadata"]["name"] != old["metadata"]["name"]:
                return status(422)
            if given != old["metadata"]["resourceVersion"]:
                return status(409)
            if new != old:
                self._version += 1
                new["metadata"]["resourceVersion"] = str(self._version)
                self.objects[path] = new
            return 200, new

    def is_over(self, *, after_s: float | None = None) -> bool:
        """Whether the stand-in ends, at once or within that time; without limit by default."""
        return self._over.wait(after_s)


def status(code: int) -> tuple[int, dict[str, Any]]:
    """The Status object of an error."""
    kind = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "metadata": {}}
    return code, {**kind, "code": code, "reason": REASONS.get(code, "InternalError")}


class _Handler(BaseHTTPRequestHandler):
    api: KubernetesApi
    timeout = 30.0

    def do_GET(self) -> None:
        self._serve(lambda _: self.api.get(self.path))

    def do_PUT(self) -> None:
        self._serve(lambda body: self.api.put(self.path, json.loads(body)))

    def _serve(self, work: Any) -> None:
        api = self.api
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        api.requests.append(f"{self.command} {self.path}")
        if api.fault == "hang":
            api.is_over()
        elif api.fault == "drip":
            self._drip()
        elif api.fault in BODIES:
            self._answer(200, BODIES[api.fault])
        elif api.fault == "redirect":
            self._answer(302, b"", {"Location": f"{api.url}/elsewhere"})
        else:
            code, found = status(int(api.fault)) if api.fault else (0, {})
            if not code and self.headers.get("Authorization") != f"Bearer {api.token}":
                code, found = status(401)
            if not code:
                code, found = work(body)
            self._answer(code, json.dumps(found).encode())

    def _drip(self) -> None:
        """An answer that never ends, and always makes progress."""
        self._answer(200, b"", {"Content-Length": str(1 << 20)})
        with contextlib.suppress(OSError):
            while not self.api.is_over(after_s=0.02):
                self.wfile.write(b" ")

    def _answer(self, code: int, body: bytes, more: dict[str, str] | None = None) -> None:
        with contextlib.suppress(OSError):  # a client that no longer waits
            self.send_response(code)
            for key, value in {"Content-Length": str(len(body)), **(more or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


if __name__ == "__main__":
    folder, host, port, namespace, name = sys.argv[1:]
    with KubernetesApi(Path(folder), host, int(port), namespace) as served:
        served.add(name)
        served.is_over()
