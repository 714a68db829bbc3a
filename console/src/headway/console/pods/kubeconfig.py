"""Reads a kubeconfig: which API server is asked, by whom, and in which namespace."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from headway.common.errors import ConfigError
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.lease.kubernetes_api import ApiClient, PodAccount, https_context

LIMIT_S = 10.0
"""Limit of one request: people wait for it, not a run."""
MAX_BYTES = 64 << 20
"""Longest answer, such as a list of pods or a log."""
_TO_TOKEN = "use a token or a client certificate, such as that of a ServiceAccount"
_REFUSED_USER = {
    "exec": "a plug-in would be run for each request",
    "auth-provider": "a plug-in would be run for each request",
    "username": "API servers no longer accept passwords",
    "as": "impersonation is not supported",
}
_REFUSED_CLUSTER = {
    "insecure-skip-tls-verify": ("certificates are always checked", "add certificate-authority"),
    "tls-server-name": ("it is not supported", "use the name of the certificate in server"),
    "proxy-url": ("proxies are not used", "reach the API server directly"),
}


@dataclass(frozen=True)
class Target:
    """A namespace of an API server, and who asks for it."""

    api: ApiClient
    namespace: str
    whence: str
    """Where all this was found, for messages."""


def connect(config: KubernetesConfig) -> Target:
    """Where the run's objects are made.

    Raises:
        ConfigError: there is no kubeconfig, or it cannot be used.
    """
    file = _file_of(config)
    account = Path(config.account)
    if file is None and (account / "token").exists():
        mine = (account / "namespace").read_text().strip()
        api = ApiClient(config.api, PodAccount(account), limit_s=LIMIT_S, max_bytes=MAX_BYTES)
        return Target(api, config.namespace or mine, f"the account in {account}")
    if file is None:
        raise ConfigError(
            "no kubeconfig was found",
            remedy="write kubeconfig = 'FILE' into kubernetes.toml, or set KUBECONFIG",
        )
    return _target(file, config)


def with_whole_path(config: KubernetesConfig) -> KubernetesConfig:
    """Make the path of the kubeconfig one that holds in any working folder."""
    named = config.kubeconfig and str(Path(config.kubeconfig).expanduser().resolve())
    return dataclasses.replace(config, kubeconfig=named)


def _file_of(config: KubernetesConfig) -> Path | None:
    if config.kubeconfig:
        return Path(config.kubeconfig).expanduser()
    if named := os.environ.get("KUBECONFIG"):
        if os.pathsep in named:
            raise ConfigError(
                f"KUBECONFIG={named!r} names several files, which are not merged",
                remedy="write kubeconfig = 'FILE' into kubernetes.toml",
            )
        return Path(named).expanduser()
    usual = Path.home() / ".kube" / "config"
    return usual if usual.exists() else None


def _target(file: Path, config: KubernetesConfig) -> Target:
    found = _read(file)
    wanted = config.context or str(found.get("current-context") or "")
    context = _named(file, found, "context", wanted)
    cluster = _named(file, found, "cluster", str(context.get("cluster") or ""))
    user = _named(file, found, "user", str(context.get("user") or ""))
    for key, (why, remedy) in _REFUSED_CLUSTER.items():
        if cluster.get(key):
            raise ConfigError(f"{file}: {key} in the cluster cannot be used: {why}", remedy=remedy)
    for key, why in _REFUSED_USER.items():
        if user.get(key):
            raise ConfigError(f"{file}: {key} of the user cannot be used: {why}", remedy=_TO_TOKEN)
    server = str(cluster.get("server") or "")
    if not server.startswith("https://"):
        raise ConfigError(
            f"{file}: server={server!r} is not the address of an API server",
            remedy="write one that starts with https://",
        )
    who = UserCredentials(
        authority=_part(file, cluster, "certificate-authority"),
        certificate=_part(file, user, "client-certificate"),
        key=_part(file, user, "client-key"),
        token=str(user.get("token") or ""),
        token_file=_beside(file, str(user.get("tokenFile") or "")),
        remedies=_remedies(f"context {wanted} of {file}"),
    )
    who.check(file)
    api = ApiClient(server, who, limit_s=LIMIT_S, max_bytes=MAX_BYTES)
    namespace = config.namespace or str(context.get("namespace") or "") or "default"
    return Target(api, namespace, f"context {wanted} of {file}")


def _remedies(whence: str) -> dict[int, str]:
    return {
        401: f"the token or certificate in {whence} was rejected: renew it",
        403: f"ask for this right for the user in {whence}; docs/howto/kubernetes.md lists all",
    }


@dataclass(frozen=True)
class Pem:
    """A certificate or a key: the file that holds it, or its text."""

    file: Path | None = None
    text: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return self.file is not None or bool(self.text)


@dataclass(frozen=True)
class UserCredentials:
    """A user's token or client certificate. Files are read anew for each request."""

    authority: Pem
    certificate: Pem
    key: Pem
    token: str = field(repr=False)
    token_file: Path | None
    remedies: Mapping[int, str]

    def check(self, file: Path) -> None:
        """Raises ConfigError if ``file`` has no way to prove who asks, or one that is unusable."""
        if not (self.token or self.token_file or (self.certificate and self.key)):
            raise ConfigError(
                f"{file}: the user has neither a token nor a client certificate with its key",
                remedy=_TO_TOKEN,
            )
        try:
            self.context()
            self.headers()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{file}: its certificates or its token cannot be used: {error}",
                remedy="check the files that it names, and their content",
            ) from error

    def context(self) -> ssl.SSLContext:
        """See ``Credentials``."""
        known = self.authority
        context = https_context(
            cafile=str(known.file) if known.file else None, cadata=known.text or None
        )
        if self.certificate and self.key:
            with tempfile.TemporaryDirectory() as folder:  # mode 0700; ssl reads files only
                paths = [_as_file(one, Path(folder)) for one in (self.certificate, self.key)]
                context.load_cert_chain(*map(str, paths))
        return context

    def headers(self) -> dict[str, str]:
        """See ``Credentials``."""
        token = self.token_file.read_text("ascii").strip() if self.token_file else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


def _as_file(pem: Pem, folder: Path) -> Path:
    if pem.file is not None:
        return pem.file
    descriptor, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(descriptor, "w") as file:
        file.write(pem.text)
    return Path(name)


def _read(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())[:200]
        raise ConfigError(
            f"cannot read the kubeconfig {file}: {why}", remedy="see docs/howto/kubernetes.md"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is not a kubeconfig", remedy="see docs/howto/kubernetes.md")
    return found


def _named(file: Path, found: Mapping[str, Any], kind: str, name: str) -> dict[str, Any]:
    """The entry of that name among ``contexts``, ``clusters`` or ``users``."""
    entries = found.get(f"{kind}s")
    entries = entries if isinstance(entries, list) else []
    known = {str(one.get("name")): one.get(kind) for one in entries if isinstance(one, dict)}
    entry = known.get(name)
    if not isinstance(entry, dict):
        raise ConfigError(
            f"{file} has no {kind} {name!r}", remedy=f"it has {', '.join(sorted(known)) or 'none'}"
        )
    return entry


def _part(file: Path, entry: Mapping[str, Any], key: str) -> Pem:
    """What ``KEY-data`` holds in base64, or the file that ``KEY`` names."""
    if data := entry.get(f"{key}-data"):
        try:
            return Pem(text=base64.b64decode(str(data), validate=True).decode("ascii"))
        except (binascii.Error, ValueError) as error:
            raise ConfigError(
                f"{file}: {key}-data is not a PEM file in base64", remedy="take it over unchanged"
            ) from error
    return Pem(_beside(file, str(entry.get(key) or "")))


def _beside(file: Path, name: str) -> Path | None:
    """A path in the kubeconfig is relative to its folder."""
    return file.resolve().parent / name if name else None
