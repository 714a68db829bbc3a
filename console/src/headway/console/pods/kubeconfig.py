"""Reads a kubeconfig: which API server is asked, by whom, and in which namespace."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from headway.common.errors import ConfigError
from headway.console.pods.credentials import TO_TOKEN, Pem, UserCredentials
from headway.console.pods.patience import PatientClient
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.lease.kubernetes_api import PodAccount

_QUOTED = re.compile(r"(['\"]).{3,}\1")
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

    api: PatientClient
    namespace: str
    source: str
    """Where all this was found, for messages."""
    context: str = ""
    """Name of the context in the kubeconfig; empty in a pod."""


def connect(config: KubernetesConfig) -> Target:
    """Where the run's objects are made.

    Raises:
        ConfigError: no kubeconfig is found, it cannot be used, or it names another server than
            ``config``.
    """
    file = _file_of(config)
    found = _of_account(config) if file is None else _of_file(file, config)
    wanted = config.server.rstrip("/")
    if wanted and found.api.server != wanted:
        raise ConfigError(
            f"{found.source} is the API server {found.api.server}, not {wanted}",
            remedy="name the kubeconfig and the context of that server",
        )
    return found


def with_whole_path(config: KubernetesConfig) -> KubernetesConfig:
    """Name the file, context, namespace and server that are meant here and now.

    Later commands then ask the same server, in any folder and whatever the environment or the
    current context is.

    Raises:
        ConfigError: as ``connect``.
    """
    file = _file_of(config)
    found = connect(config)
    return dataclasses.replace(
        config,
        kubeconfig=str(file.resolve()) if file is not None else "",
        context=found.context,
        namespace=found.namespace,
        server=found.api.server,
    )


def _of_account(config: KubernetesConfig) -> Target:
    """The server of the pod that this is. Raises ConfigError where it is none."""
    account = Path(config.account)
    if not (account / "token").exists():
        raise ConfigError(
            "no kubeconfig was found",
            remedy="write kubeconfig = 'FILE' into kubernetes.toml, or set KUBECONFIG",
        )
    mine = (account / "namespace").read_text().strip()
    api = PatientClient(config.api, PodAccount(account))
    return Target(api, config.namespace or mine, f"the account in {account}")


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


@dataclass(frozen=True)
class _Entry:
    """One context of a kubeconfig."""

    name: str
    namespace: str
    server: str
    who: UserCredentials


def _of_file(file: Path, config: KubernetesConfig) -> Target:
    entry = _entry(file, config.context)

    def renewed() -> UserCredentials | None:
        try:
            now = _entry(file, entry.name)
        except ConfigError:  # it is just being written: the server's answer says more
            return None
        return now.who if now.server == entry.server and now.who != entry.who else None

    return Target(
        api=PatientClient(entry.server, entry.who, renewed),
        namespace=config.namespace or entry.namespace or "default",
        source=f"context {entry.name} of {file}",
        context=entry.name,
    )


def _entry(file: Path, name: str) -> _Entry:
    """The context of this name, or the current one. Raises ConfigError."""
    found = _read(file)
    wanted = name or str(found.get("current-context") or "")
    context = _named(file, found, "context", wanted)
    cluster = _named(file, found, "cluster", str(context.get("cluster") or ""))
    user = _named(file, found, "user", str(context.get("user") or ""))
    for key, (why, remedy) in _REFUSED_CLUSTER.items():
        if cluster.get(key):
            raise ConfigError(f"{file}: {key} in the cluster cannot be used: {why}", remedy=remedy)
    for key, why in _REFUSED_USER.items():
        if user.get(key):
            raise ConfigError(f"{file}: {key} of the user cannot be used: {why}", remedy=TO_TOKEN)
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
    return _Entry(wanted, str(context.get("namespace") or ""), server.rstrip("/"), who)


def _remedies(source: str) -> dict[int, str]:
    return {
        401: f"the token or certificate in {source} was rejected: renew it",
        403: f"ask for this right for the user in {source}; docs/howto/kubernetes.md lists all",
    }


def _read(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"cannot read the kubeconfig {file}: {_why(error)}",
            remedy="see docs/howto/kubernetes.md",
        ) from None  # its words may hold a secret
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is not a kubeconfig", remedy="see docs/howto/kubernetes.md")
    return found


def _why(error: Exception) -> str:
    """What is wrong with a file, and where, without what it holds, such as a token."""
    if isinstance(error, OSError):
        return str(error.strerror)
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "it is not text" if isinstance(error, UnicodeDecodeError) else "it is not YAML"
    problem = _QUOTED.sub("...", " ".join(str(getattr(error, "problem", "")).split()))
    return f"line {mark.line + 1}: {problem}"


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
                f"{file}: {key}-data is not a PEM file in base64", remedy="copy it unchanged"
            ) from error
    return Pem(_beside(file, str(entry.get(key) or "")))


def _beside(file: Path, name: str) -> Path | None:
    """A path in the kubeconfig is relative to its folder."""
    return file.resolve().parent / name if name else None
