"""Certificates and signed tokens for an API server of a test, made by openssl."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


class Authority:
    """A certificate authority in a folder, and the key with which tokens are signed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.certificate = folder, folder / "ca.crt"
        self.token_key = folder / "tokens.key"
        words = ["req", "-x509", *_KEY, "-days", "2", "-subj", "/CN=test"]
        _openssl([*words, "-keyout", str(folder / "ca.key"), "-out", str(self.certificate)])
        _openssl(["genrsa", "-out", str(self.token_key), "2048"])

    def issue(self, name: str, subject: str, *, address: str = "") -> tuple[Path, Path]:
        """A certificate and its key, for a server at ``address`` or a client."""
        key, request, made = (self.folder / f"{name}.{end}" for end in ("key", "csr", "crt"))
        extra = self.folder / f"{name}.ext"
        usage = "serverAuth" if address else "clientAuth"
        names = f"subjectAltName=IP:{address}\n" if address else ""
        extra.write_text(f"{names}extendedKeyUsage={usage}\n")
        words = ["req", *_KEY, "-subj", subject, "-keyout", str(key), "-out", str(request)]
        _openssl(words)
        authority = ["-CA", str(self.certificate), "-CAkey", str(self.folder / "ca.key")]
        words = ["x509", "-req", "-in", str(request), *authority, "-CAcreateserial", "-days", "2"]
        _openssl([*words, "-extfile", str(extra), "-out", str(made)])
        return made, key

    def token(self, claims: Mapping[str, Any], *, expires_in_s: float) -> str:
        """A token of a ServiceAccount with these claims, signed with the server's own key."""
        now = int(time.time())
        expires = int(now + expires_in_s)
        times = {"iat": min(now, expires) - 60, "nbf": min(now, expires) - 60, "exp": expires}
        parts = [{"alg": "RS256", "kid": "", "typ": "JWT"}, {**claims, **times}]
        signed = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        words = ["openssl", "dgst", "-sha256", "-sign", str(self.token_key)]
        done = subprocess.run(words, input=signed.encode(), capture_output=True, check=True)
        return f"{signed}.{_base64(done.stdout)}"


def claims_of(token: str) -> dict[str, Any]:
    """What a token says, without the times."""
    body = token.split(".")[1]
    found = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return {key: value for key, value in found.items() if key not in ("iat", "nbf", "exp")}


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _openssl(words: list[str]) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
