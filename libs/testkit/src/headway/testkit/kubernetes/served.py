"""What a real API server of a test and a fake one have in common: certificates and users."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.launch.lease.kubernetes_api import ApiClient, https_context
from headway.testkit.kubernetes.certificates import Authority

ADMIN, NOBODY = "admin-token", "nobody-token"
"""Tokens of two users: one may do everything, the other nothing."""


class Bearer:
    """Credentials with a token and an authority."""

    remedies: Mapping[int, str] = {}

    def __init__(self, token: str, authority: Path) -> None:
        self._token, self._authority = token, authority

    def context(self) -> Any:
        """See ``Credentials``."""
        return https_context(cafile=str(self._authority))

    def headers(self) -> dict[str, str]:
        """See ``Credentials``."""
        return {"Authorization": f"Bearer {self._token}"}


class ServedApi:
    """An API server on a port of loopback, with a certificate for it.

    Args:
        folder: for its files.
    """

    port: int

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, Authority(folder / "pki")
        self.certificate, self._key = self.authority.issue(
            "server", "/CN=server", address="127.0.0.1"
        )

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"https://127.0.0.1:{self.port}"

    def client(self, token: str = ADMIN) -> ApiClient:
        """Requests of the user with this token."""
        who = Bearer(token, self.authority.certificate)
        return ApiClient(self.url, who, limit_s=20.0, max_bytes=1 << 26)

    def kubeconfig(
        self, file: Path, user: Mapping[str, Any], *, namespace: str = "", **cluster: Any
    ) -> Path:
        """Write a kubeconfig of one user; JSON is YAML too.

        ``cluster`` is added to the entry of the cluster.
        """
        entry = {"server": self.url, "certificate-authority": str(self.authority.certificate)}
        context = {"cluster": "test", "user": "me", "namespace": namespace}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": context}],
            "clusters": [{"name": "test", "cluster": {**entry, **cluster}}],
            "users": [{"name": "me", "user": dict(user)}],
        }
        file.write_text(json.dumps(content))
        return file
