"""Builds the Kubernetes objects of a run on pods. Pure: nothing is read or started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.launch.engine import TERM_S
from headway.launch.engines.kubernetes.config import MAX_LABEL, KubernetesConfig, check_name
from headway.launch.engines.kubernetes.pod import BUNDLE, CONSOLE_KEY
from headway.launch.engines.remote.reach import MODULE
from headway.launch.join.bundle import Bundle
from headway.launch.lease.kubernetes import API_VERSION, GROUP, KIND

SECRETS = "/etc/headway"
"""Where a pod finds the files of the Secret."""
ALWAYS = 1_000_000
"""How often a pod is started again: as often as it takes, with Kubernetes' growing pauses."""


@dataclass(frozen=True)
class Needs:
    """Resources of one pod."""

    cpus: int
    memory_bytes: int
    """``shm_bytes`` included: Kubernetes counts shared memory as the pod's."""
    shm_bytes: int
    """Size of /dev/shm."""
    gpus: int = 0


def render(
    bundle: Bundle, config: KubernetesConfig, needs: Needs, console_key: str
) -> list[dict[str, Any]]:
    """Return the Kubernetes objects of a run, all named after it.

    They are a Secret, a Lease with what pods need to use it, a NetworkPolicy and the Job.

    Args:
        bundle: of the run; its number of nodes is that of the pods.
        config: what the pods are made of.
        needs: of each pod.
        console_key: ``KeyPair.to_text`` of the pair whose public half the bundle has.

    Raises:
        ConfigError: the run's name cannot be that of a Job, whose pods add their number to it.
    """
    check_name("run name", bundle.name, longest=MAX_LABEL - len(f"-{bundle.nodes}"))
    return [
        _secret(bundle, config, console_key),
        _lease(bundle, config),
        *_account(bundle, config),
        _network_policy(bundle, config),
        _job(bundle, config, needs),
    ]


def _labels(bundle: Bundle) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "headway",
        "app.kubernetes.io/instance": bundle.run_id,
        "app.kubernetes.io/component": "node",
        "app.kubernetes.io/part-of": bundle.name,
    }


def _metadata(bundle: Bundle, config: KubernetesConfig) -> dict[str, Any]:
    where = {"namespace": config.namespace} if config.namespace else {}
    return {"name": bundle.name, **where, "labels": _labels(bundle)}


def _selector(bundle: Bundle) -> dict[str, Any]:
    """The pods of this run and no others."""
    return {"matchLabels": {"app.kubernetes.io/instance": bundle.run_id}}


def _object(
    kind: str, bundle: Bundle, config: KubernetesConfig, *, api: str = "v1", **more: Any
) -> dict[str, Any]:
    """An object of the run; ``more`` is what its kind has beside a name."""
    return {"apiVersion": api, "kind": kind, "metadata": _metadata(bundle, config), **more}


def _secret(bundle: Bundle, config: KubernetesConfig, console_key: str) -> dict[str, Any]:
    files = {BUNDLE: bundle.to_json(), CONSOLE_KEY: console_key}
    return _object("Secret", bundle, config, type="Opaque", immutable=True, stringData=files)


def _lease(bundle: Bundle, config: KubernetesConfig) -> dict[str, Any]:
    """The driver's lease. Only its name, so that applying it again changes nothing."""
    return _object(KIND, bundle, config, api=API_VERSION)


def _account(bundle: Bundle, config: KubernetesConfig) -> list[dict[str, Any]]:
    """A ServiceAccount that may read and replace the run's lease, and nothing else."""
    group = "rbac.authorization.k8s.io"
    api = f"{group}/v1"
    lease = {
        "apiGroups": [GROUP],
        "resources": ["leases"],
        "resourceNames": [bundle.name],
        "verbs": ["get", "update"],
    }
    role = {"apiGroup": group, "kind": "Role", "name": bundle.name}
    # without a namespace the subject is in the binding's
    subject = {"kind": "ServiceAccount", "name": bundle.name}
    if config.namespace:
        subject["namespace"] = config.namespace
    return [
        _object("ServiceAccount", bundle, config, automountServiceAccountToken=False),
        _object("Role", bundle, config, api=api, rules=[lease]),
        _object("RoleBinding", bundle, config, api=api, roleRef=role, subjects=[subject]),
    ]


def _network_policy(bundle: Bundle, config: KubernetesConfig) -> dict[str, Any]:
    """Pods of the run accept connections of each other only."""
    spec = {
        "podSelector": _selector(bundle),
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": _selector(bundle)}]}],
    }
    return _object("NetworkPolicy", bundle, config, api="networking.k8s.io/v1", spec=spec)


def _job(bundle: Bundle, config: KubernetesConfig, needs: Needs) -> dict[str, Any]:
    pod = {"metadata": {"labels": _labels(bundle)}, "spec": _pod(bundle, config, needs)}
    spec = {
        "completionMode": "Indexed",
        "completions": bundle.nodes,
        "parallelism": bundle.nodes,
        "backoffLimitPerIndex": ALWAYS,
        "podReplacementPolicy": "Failed",  # never two pods with the same number
        "template": pod,
    }
    return _object("Job", bundle, config, api="batch/v1", spec=spec)


def _pod(bundle: Bundle, config: KubernetesConfig, needs: Needs) -> dict[str, Any]:
    one_per_machine = {"labelSelector": _selector(bundle), "topologyKey": "kubernetes.io/hostname"}
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    chosen = dict(label.split("=", 1) for label in config.node_selector)
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(TERM_S),
        "serviceAccountName": bundle.name,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        **({"nodeSelector": chosen} if chosen else {}),
        "affinity": {"podAntiAffinity": {rule: [one_per_machine]}},
        "containers": [_container(config, needs)],
        "volumes": [
            {"name": "secret", "secret": {"secretName": bundle.name}},
            {"name": "shared", "persistentVolumeClaim": {"claimName": config.claim}},
            {"name": "scratch", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": mib(needs.shm_bytes)}},
        ],
    }


def _container(config: KubernetesConfig, needs: Needs) -> dict[str, Any]:
    # Memory is a request only: it is predicted, and a limit that is too low would end ranks.
    requests = {"cpu": str(needs.cpus), "memory": mib(needs.memory_bytes)}
    gpus = {"limits": {config.gpu_resource: str(needs.gpus)}} if needs.gpus else {}
    return {
        "name": "node",
        "image": config.image,
        "command": [config.python, *MODULE, "pod", f"{SECRETS}/{BUNDLE}"],
        "resources": {"requests": requests, **gpus},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "secret", "mountPath": SECRETS, "readOnly": True},
            {"name": "shared", "mountPath": config.shared},
            {"name": "scratch", "mountPath": config.scratch},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }


def mib(size: int) -> str:
    """Bytes as Kubernetes writes a quantity, rounded up.

    >>> mib(1 + (1 << 20))
    '2Mi'
    """
    return f"{-(-size >> 20)}Mi"
