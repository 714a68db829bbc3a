"""A small fake of the API server, for machines without the real one.

It keeps objects and what the real one answered when the tests ran against it: versions, conflicts,
label selectors, merge patches, status as a part of its own, the graceful deletion of pods, and the
words of its errors. It validates nothing, and knows one user who may do everything and one who may
do nothing.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import secrets
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headway.testkit.kubernetes.served import ADMIN, NOBODY, ServedApi

PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>status|log))?"
)
REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "AlreadyExists"}
CHANGED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)
Answer = tuple[int, Any]
Key = tuple[str, str, str, str]


class FakeApi(ServedApi):
    """``with FakeApi(folder) as api``: the same faces as ``RealApi``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._objects: dict[Key, dict[str, Any]] = {}
        self._version, self._lock = 1, threading.RLock()
        self.logs: dict[str, str] = {}
        """By the name of the pod."""
        handler = type("Handler", (_Handler,), {"api": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self._http.server_port
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self._key)
        self._http.socket = context.wrap_socket(
            self._http.socket, server_side=True, do_handshake_on_connect=False
        )

    def __enter__(self) -> FakeApi:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, method: str, url: str, body: Any, token: str) -> Answer:
        """Status, and an object or a text."""
        parts = urlsplit(url)
        found = PATH.fullmatch(parts.path)
        if token not in (ADMIN, NOBODY):
            return _failed(401, "Unauthorized")
        if found is None:
            return _failed(404, "the server could not find the requested resource")
        if found["plural"] == "selfsubjectaccessreviews":
            return 201, {**body, "status": {"allowed": token == ADMIN}}
        if token != ADMIN:
            return _forbidden(method, found)
        key = (found["group"] or "", found["namespace"] or "", found["plural"], found["name"] or "")
        if found["part"] == "log":
            return 200, self.logs.get(key[3], "")
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        with self._lock:
            return self._do(method, key, found["part"] or "", query, body)

    def _do(self, method: str, key: Key, part: str, query: dict[str, str], body: Any) -> Answer:
        if method == "POST":
            return self._create(key, body)
        if not key[3]:
            return self._list(key, query.get("labelSelector", ""))
        if (kept := self._objects.get(key)) is None:
            return _failed(404, f'{key[2]} "{key[3]}" not found')
        if method == "GET":
            return 200, kept
        if method == "DELETE":
            return self._delete(key, kept, body or {})
        changed = _merged(kept, body) if method == "PATCH" else body
        if method == "PUT" and _version(body) != _version(kept):
            return _failed(409, f'Operation cannot be fulfilled on {key[2]} "{key[3]}": {CHANGED}')
        if key[2] in ("pods", "jobs"):
            other, one = (kept, changed) if part == "status" else (changed, kept)
            changed = {**other, "status": one.get("status", {})}
        return 200, self._keep(key, changed)

    def _create(self, key: Key, body: dict[str, Any]) -> Answer:
        group, namespace, plural, _ = key
        name = body["metadata"]["name"]
        if namespace and ("", "", "namespaces", namespace) not in self._objects:
            return _failed(404, f'namespaces "{namespace}" not found')
        if (key := (group, namespace, plural, name)) in self._objects:
            return _failed(409, f'{plural} "{name}" already exists')
        metadata = {**body["metadata"], "namespace": namespace, "uid": secrets.token_hex(8)}
        made = {**body, "metadata": metadata}
        if texts := made.pop("stringData", None):
            made["data"] = {k: base64.b64encode(v.encode()).decode() for k, v in texts.items()}
        return 201, self._keep(key, made)

    def _list(self, key: Key, selector: str) -> Answer:
        wanted = dict(one.split("=", 1) for one in selector.split(",") if one)
        items = [
            one
            for (*place, _), one in self._objects.items()
            if tuple(place) == key[:3]
            and wanted.items() <= (one["metadata"].get("labels") or {}).items()
        ]
        return 200, {"kind": "List", "metadata": {}, "items": items}

    def _delete(self, key: Key, kept: dict[str, Any], options: dict[str, Any]) -> Answer:
        uid = (options.get("preconditions") or {}).get("uid")
        if uid not in (None, kept["metadata"]["uid"]):
            words = f'Operation cannot be fulfilled on {kept["kind"]} "{key[3]}": the UID in the'
            return _failed(409, f"{words} precondition ({uid}) does not match the UID in record")
        has_machine = key[2] == "pods" and kept["spec"].get("nodeName")
        if has_machine and options.get("gracePeriodSeconds") != 0:
            marks = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
            return 200, self._keep(key, _merged(kept, marks))
        del self._objects[key]
        return 200, {"kind": "Status", "status": "Success"}

    def _keep(self, key: Key, one: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        metadata = {**one["metadata"], "resourceVersion": str(self._version)}
        self._objects[key] = {**one, "metadata": metadata}
        return self._objects[key]


def _merged(old: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found


def _forbidden(method: str, asked: re.Match[str]) -> Answer:
    verb = {"POST": "create", "PUT": "update"}.get(method, method.lower())
    verb = "list" if method == "GET" and not asked["name"] else verb
    group, plural = asked["group"] or "", asked["plural"]
    where = f'in API group "{group}" in the namespace "{asked["namespace"]}"'
    what = f"{plural}.{group}" if group else plural
    words = f'User "nobody" cannot {verb} resource "{plural}" {where}'
    return _failed(403, f"{what} is forbidden: {words}")


def _version(one: dict[str, Any]) -> str:
    return str(one["metadata"].get("resourceVersion", ""))


def _failed(code: int, message: str) -> Answer:
    """The Status object of an error."""
    kind = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return code, {**kind, "message": message, "reason": REASONS[code], "code": code}


class _Handler(BaseHTTPRequestHandler):
    api: FakeApi
    timeout = 30.0

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        sent = json.loads(body) if body else None
        code, found = self.api.answer(self.command, self.path, sent, token)
        data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        with contextlib.suppress(OSError):
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        """Write nothing."""
