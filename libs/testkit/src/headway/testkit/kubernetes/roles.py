"""Which rights the Roles of a namespace give to a user, as the real API server decides it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def verb_of(method: str, name: str) -> str:
    """The verb of a request; ``name``: of the object, empty for all of a kind."""
    return VERBS.get(method) or ("get" if name else "list")


def rules_of(
    user: str, roles: Iterable[Mapping[str, Any]], bindings: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The rules of all Roles that are bound to a user."""
    names = {
        one["roleRef"]["name"]
        for one in bindings
        if any((who["kind"], who["name"]) == ("User", user) for who in one["subjects"])
    }
    found = [role for role in roles if role["metadata"]["name"] in names]
    return [rule for role in found for rule in role["rules"]]


def is_allowed(
    rules: Iterable[Mapping[str, Any]], verb: str, group: str, resource: str, name: str = ""
) -> bool:
    """Whether one of the rules allows it; ``resource`` may have a part, as ``pods/log``."""
    return any(
        verb in rule["verbs"]
        and group in rule["apiGroups"]
        and resource in rule["resources"]
        and name in rule.get("resourceNames", [name])
        for rule in rules
    )
