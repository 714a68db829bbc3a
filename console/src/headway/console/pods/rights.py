"""Checks the rights of a user before anything is created, by asking the API server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from headway.common.errors import InputError
from headway.console.pods.kinds import IN_ORDER, LEASE, POD, SECRET
from headway.console.pods.kubeconfig import Target

REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
AT_ONCE = 8

Right = tuple[str, str, str]
"""Verb, API group and resource."""


def needed() -> list[Right]:
    """What a run takes: create, watch and delete its objects, and give its pods their own role."""
    found = [
        (verb, kind.group, kind.plural)
        for kind in IN_ORDER
        for verb in ("create", "list", "delete")
        if (verb, kind) != ("create", POD)
    ]
    of_role = [(verb, LEASE.group, LEASE.plural) for verb in ("get", "update", "patch")]
    return [*found, *of_role, ("get", "", SECRET.plural), ("patch", "", SECRET.plural)]


def missing(target: Target) -> list[Right]:
    """Those of ``needed`` that the user lacks in the namespace. Raises ApiError."""

    def is_allowed(right: Right) -> bool:
        verb, group, resource = right
        asked = {
            "namespace": target.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        answer = target.api.json("POST", REVIEW, review)
        return bool((answer.get("status") or {}).get("allowed"))

    rights = needed()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        allowed = pool.map(is_allowed, rights)
        return [right for right, is_there in zip(rights, allowed, strict=True) if not is_there]


def check(target: Target) -> None:
    """Check that the user has every right that a run takes.

    Raises:
        InputError: one is missing. ApiError: the server does not answer.
    """
    if lacking := missing(target):
        by_resource: dict[str, list[str]] = {}
        for verb, _, resource in lacking:
            by_resource.setdefault(resource, []).append(verb)
        words = "; ".join(f"{', '.join(verbs)} {name}" for name, verbs in by_resource.items())
        raise InputError(
            f"the user of {target.source} may not {words} in namespace {target.namespace}",
            remedy="ask for a Role with these rights; docs/howto/kubernetes.md has one",
        )
