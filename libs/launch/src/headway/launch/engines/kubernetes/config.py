"""What a run's pods are made of, and which names Kubernetes takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headway.common.errors import ConfigError
from headway.launch.engines.remote.config_file import check_absolute

MAX_LABEL, MAX_SUBDOMAIN = 63, 253
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?")


@dataclass(frozen=True)
class KubernetesConfig:
    """Kept in the bundle, so that each pod knows its folders."""

    image: str
    """An image that has Headway installed, the same version as here."""
    claim: str
    """Name of the PersistentVolumeClaim that all pods mount: ReadWriteMany, with the corpus and
    room for the checkpoints."""
    namespace: str = ""
    """Empty: the one that kubectl uses."""
    shared: str = "/shared"
    """Where pods mount the claim."""
    scratch: str = "/scratch"
    """Folder of each pod alone, for logs and keys; it is gone with the pod."""
    python: str = "python3"
    """Python of the installation in the image."""
    node_selector: tuple[str, ...] = ()
    """Labels, as ``key=value``, of the machines that may be taken."""
    gpu_resource: str = "nvidia.com/gpu"
    """What the cluster calls a GPU; each rank gets one."""
    api: str = "https://kubernetes.default.svc"
    """Its API server, as pods reach it."""
    account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """Where Kubernetes mounts the token of a pod's ServiceAccount."""
    kubeconfig: str = ""
    """The file that says how this machine reaches the API server. Empty: ``KUBECONFIG`` of the
    environment, then ``~/.kube/config``, and in a pod its account. No pod gets it."""
    context: str = ""
    """One of the file's contexts; empty: its current one."""
    server: str = ""
    """The address that the context must have; empty: any. Runs and clusters keep it, so that
    another server is never taken for theirs."""

    def __post_init__(self) -> None:
        if not self.image or self.image != "".join(self.image.split()):
            raise ConfigError(
                f"image={self.image!r} is not the name of an image",
                remedy="write one such as registry.example.org/headway:0.1.0",
            )
        check_name("claim", self.claim, parts=True)
        if self.namespace:
            check_name("namespace", self.namespace)
        if not self.api.startswith("https://"):
            raise ConfigError(
                f"api={self.api!r} is not the address of an API server",
                remedy="write one that starts with https://",
            )
        check_absolute(shared=self.shared, scratch=self.scratch, account=self.account)
        if not _QUALIFIED.fullmatch(self.gpu_resource):
            raise ConfigError(
                f"gpu_resource={self.gpu_resource!r} is not the name of a resource",
                remedy="write one such as nvidia.com/gpu",
            )
        for label in self.node_selector:
            key, equals, value = label.partition("=")
            if not (equals and _QUALIFIED.fullmatch(key) and _is_value(value)):
                raise ConfigError(
                    f"node_selector: {label!r} is not a label",
                    remedy="write KEY=VALUE, such as gpu=h100",
                )


def _is_value(text: str) -> bool:
    return len(text) <= MAX_LABEL and _VALUE.fullmatch(text) is not None


def check_name(what: str, name: str, *, longest: int = MAX_LABEL, parts: bool = False) -> None:
    """Check that a name can be used in Kubernetes.

    Args:
        what: what the name is for, used in the message.
        name: the name; must be an RFC 1123 label.
        longest: in characters.
        parts: several labels with dots between them are allowed, as in the name of a claim.

    Raises:
        ConfigError: it is not one.
    """
    labels = name.split(".") if parts else [name]
    longest = MAX_SUBDOMAIN if parts else longest
    if len(name) > longest or not all(_LABEL.fullmatch(label) for label in labels):
        raise ConfigError(
            f"{what} {name!r} is not a name for Kubernetes (RFC 1123)",
            remedy=f"use up to {longest} lower-case letters, digits and '-', with a letter or "
            "digit at both ends",
        )
