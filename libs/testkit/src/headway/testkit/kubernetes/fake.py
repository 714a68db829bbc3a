"""A small fake of the API server, for machines without the real one.

It keeps objects and what the real one answered when the tests ran against it: versions, conflicts,
label selectors, selection by name, lists in pages, merge patches, status as a part of its own, the
graceful deletion of pods, Roles, and the words of its errors. It validates nothing. Of its users
one may do everything, and the other what Roles of the namespace say.
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

from headway.testkit.kubernetes.faults import Faults
from headway.testkit.kubernetes.roles import is_allowed, rules_of, verb_of
from headway.testkit.kubernetes.served import ADMIN, NOBODY, ServedApi

PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>status|log))?"
)
REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "AlreadyExists"}
RBAC = "rbac.authorization.k8s.io"
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
        self.faults = Faults()
        self.users = {ADMIN: "admin", NOBODY: "nobody"}
        """By their tokens; ``admin`` may do everything."""
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
        if (user := self.users.get(token)) is None:
            return _failed(401, "Unauthorized")
        if found is None:
            return _failed(404, "the server could not find the requested resource")
        if found["plural"] == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            what = (asked["verb"], asked["group"], asked["resource"])
            allowed = self._may(user, asked["namespace"], *what)
            return 201, {**body, "status": {"allowed": allowed}}
        resource = "/".join(filter(None, (found["plural"], found["part"])))
        verb, name = verb_of(method, found["name"] or ""), found["name"] or ""
        where = found["namespace"] or ""
        if not self._may(user, where, verb, found["group"] or "", resource, name):
            return _forbidden(verb, found)
        key = (found["group"] or "", found["namespace"] or "", found["plural"], found["name"] or "")
        if found["part"] == "log":
            return 200, self.logs.get(key[3], "")
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        with self._lock:
            return self._do(method, key, found["part"] or "", query, body)

    def _may(self, user: str, namespace: str, *what: str) -> bool:
        """Whether a Role of the namespace allows verb, group, resource and perhaps name."""
        with self._lock:
            kinds = ("roles", "rolebindings")
            roles, bindings = (self._kept(RBAC, namespace, kind) for kind in kinds)
        return user == "admin" or is_allowed(rules_of(user, roles, bindings), *what)

    def _kept(self, *place: str) -> list[dict[str, Any]]:
        """Every object of a group, namespace and kind, sorted by name."""
        keys = sorted(key for key in self._objects if key[:3] == place)
        return [self._objects[key] for key in keys]

    def _do(self, method: str, key: Key, part: str, query: dict[str, str], body: Any) -> Answer:
        if method == "POST":
            return self._create(key, body)
        if not key[3]:
            return self._list(key, query)
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

    def _list(self, key: Key, query: dict[str, str]) -> Answer:
        """What matches, a page at a time: ``continue`` names the last one of the page before."""
        labels = dict(one.split("=", 1) for one in query.get("labelSelector", "").split(",") if one)
        name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        after = base64.b64decode(query.get("continue", "")).decode()
        items = [
            one
            for one in self._kept(*key[:3])
            if labels.items() <= (one["metadata"].get("labels") or {}).items()
            and name in ("", one["metadata"]["name"])
            and one["metadata"]["name"] > after
        ]
        page = items[: int(query.get("limit") or len(items))]
        more = page[-1]["metadata"]["name"] if len(page) < len(items) else ""
        metadata = {"continue": base64.b64encode(more.encode()).decode()} if more else {}
        return 200, {"kind": "List", "metadata": metadata, "items": page}

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


def _forbidden(verb: str, asked: re.Match[str]) -> Answer:
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
    return code, {**kind, "message": message, "reason": REASONS.get(code, ""), "code": code}


class _Handler(BaseHTTPRequestHandler):
    api: FakeApi
    timeout = 30.0

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        sent = json.loads(body) if body else None
        fault = self.api.faults.of(self.command, self.path)
        if fault is None or fault.is_late:
            code, found = self.api.answer(self.command, self.path, sent, token)
        if fault is not None:
            code, found = _failed(fault.code, "this is a fault of a test")
        if not code:
            self.close_connection = True
            return
        data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        with contextlib.suppress(OSError):
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            if fault is not None and fault.retry_after:
                self.send_header("Retry-After", fault.retry_after)
            self.end_headers()
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        """Write nothing."""
