"""moto's AWS on loopback, with what it lacks for Terraform; prints its address, ends on SIGTERM.

Run as a process of its own: ``python aws_emulator.py``. Anyone may call it with any credentials.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"  # one is attached to the entrance

from moto.budgets.responses import BudgetsResponse
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance
from moto.ec2.models.launch_templates import LaunchTemplateVersion
from moto.ec2.models.nat_gateways import NatGateway
from moto.ec2.models.security_groups import SecurityGroupRule
from moto.ec2.responses import EC2Response
from moto.ec2.responses.tags import TagResponse
from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket
from moto.server import ThreadedMotoServer

NAMESPACE = 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'


def _answer(action: str, body: str) -> str:
    request = f"<requestId>{uuid.uuid4()}</requestId>"
    return f"<{action}Response {NAMESPACE}>{request}{body}</{action}Response>"


# ---- placement groups, which moto does not know at all -------------------------------------------
class PlacementGroups:
    """By region and name; only what ``aws_placement_group`` asks for."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], dict[str, Any]] = {}

    def create(self, response: Any) -> str:
        name = response._get_param("GroupName")
        group = {
            "name": name,
            "id": f"pg-{uuid.uuid4().hex[:17]}",
            "strategy": response._get_param("Strategy") or "cluster",
            "tags": response._parse_tag_specification().get("placement-group", {}),
        }
        self._groups[response.region, name] = group
        return _answer("CreatePlacementGroup", _described("placementGroup", group))

    def describe(self, response: Any) -> str:
        names = response._get_param("GroupNames", []) or response._get_param("GroupName", [])
        names = [names] if isinstance(names, str) else names
        found = [
            group
            for (region, name), group in self._groups.items()
            if region == response.region and (not names or name in names)
        ]
        if names and not found:
            unknown = f"The Placement Group '{names[0]}' is unknown."
            raise EC2ClientError("InvalidPlacementGroup.Unknown", unknown)
        rows = "".join(_described("item", group) for group in found)
        return _answer("DescribePlacementGroups", f"<placementGroupSet>{rows}</placementGroupSet>")

    def delete(self, response: Any) -> str:
        self._groups.pop((response.region, response._get_param("GroupName")), None)
        return _answer("DeletePlacementGroup", "<return>true</return>")


def _described(element: str, group: dict[str, Any]) -> str:
    tags = "".join(
        f"<item><key>{key}</key><value>{value}</value></item>"
        for key, value in group["tags"].items()
    )
    return (
        f"<{element}><groupName>{group['name']}</groupName><groupId>{group['id']}</groupId>"
        f"<state>available</state><strategy>{group['strategy']}</strategy>"
        f"<tagSet>{tags}</tagSet></{element}>"
    )


def _add_placement_groups() -> None:
    groups = PlacementGroups()
    actions: dict[str, Callable[[Any], str]] = {
        "create_placement_group": groups.create,
        "describe_placement_groups": groups.describe,
        "delete_placement_group": groups.delete,
    }
    for name, action in actions.items():
        setattr(EC2Response, name, lambda response, action=action: action(response))


# ---- instances and their network -----------------------------------------------------------------
def _patch_instances() -> None:
    terminate = Instance.terminate

    def terminate_and_free(instance: Any) -> Any:
        """A card that outlives its instance can be attached to the next."""
        before = terminate(instance)
        for card in instance.nics.values():
            card.instance, card.attachment_id, card.status = None, None, "available"
        return before

    Instance.terminate = terminate_and_free
    EC2Response.monitor_instances = lambda _: _answer("MonitorInstances", "<instancesSet/>")

    # moto reports the template's own tags as those of what it launches
    make = LaunchTemplateVersion.__init__

    def without_own_tags(version: Any, template: Any, number: int, data: Any, text: Any) -> None:
        specified = data.get("TagSpecifications", [])
        kept = [one for one in specified if one["ResourceType"] != "launch-template"]
        make(version, template, number, {**data, "TagSpecifications": kept}, text)

    LaunchTemplateVersion.__init__ = without_own_tags


def _patch_network() -> None:
    SecurityGroupRule.description = property(  # also of a rule between groups
        lambda rule: (rule.ip_range or rule.source_group).get("Description")
    )
    create = EC2Response.create_nat_gateway
    make = NatGateway.__init__
    asked = threading.local()

    def create_with_address(response: Any) -> Any:
        asked.address = response._get_param("PrivateIpAddress")
        return create(response)

    def at_address(gateway: Any, *words: Any, **named: Any) -> None:
        make(gateway, *words, **named)
        if asked.address:
            gateway.private_ip = gateway._eni.private_ip_address = asked.address

    EC2Response.create_nat_gateway, NatGateway.__init__ = create_with_address, at_address


# ---- tags: moto keeps those of what was deleted --------------------------------------------------
def _patch_tags() -> None:
    describe = TagResponse.describe_tags

    def of_what_is_there(response: Any) -> Any:
        answer, known = describe(response), set(_ids(response.ec2_backend))
        tags = answer.result["Tags"]
        answer.result["Tags"] = [tag for tag in tags if tag["resource_id"] in known]
        return answer

    TagResponse.describe_tags = of_what_is_there


def _ids(backend: Any) -> Iterator[str]:
    """Of every resource of a region that has not been deleted; terminated instances are listed."""
    collections = [kept for name, kept in vars(backend).items() if name != "tags"]
    while collections:
        kept = collections.pop()
        found = [*kept.values()] if isinstance(kept, dict) else kept
        if not isinstance(found, list):
            continue
        collections += found
        for one in found:
            if getattr(one, "state", "") != "deleted":
                yield str(getattr(one, "allocation_id", getattr(one, "id", "")))
            yield from (instance.id for instance in getattr(one, "instances", []))
            rules = [*getattr(one, "ingress_rules", []), *getattr(one, "egress_rules", [])]
            yield from (rule.id for rule in rules)


# ---- budgets and buckets -------------------------------------------------------------------------
def _subscribers(response: Any) -> str:
    account, name = response._get_param("AccountId"), response._get_param("BudgetName")
    asked = response._get_param("Notification")
    for one in response.backend.budgets[account][name].notifications:
        if all(one.details.get(key) == value for key, value in asked.items()):
            return json.dumps({"Subscribers": one.subscribers})
    return json.dumps({"Subscribers": []})


def _patch_budgets() -> None:
    tags: dict[str, Any] = {}
    create = BudgetsResponse.create_budget

    def create_with_tags(response: Any) -> str:
        name = response._get_param("Budget")["BudgetName"]
        tags[name] = response._get_param("ResourceTags", [])
        return create(response)

    def list_tags(response: Any) -> str:
        name = response._get_param("ResourceARN").rpartition("/")[2]
        return json.dumps({"ResourceTags": tags.get(name, [])})

    BudgetsResponse.create_budget = create_with_tags
    BudgetsResponse.list_tags_for_resource = list_tags
    BudgetsResponse.describe_subscribers_for_notification = _subscribers


def _patch_buckets() -> None:
    """moto applies a policy's Deny without looking at its conditions."""
    FakeBucket.get_permission = lambda *_: PermissionResult.NEUTRAL


PATCHES = (
    _add_placement_groups,
    _patch_instances,
    _patch_network,
    _patch_tags,
    _patch_budgets,
    _patch_buckets,
)


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not each request
    for patch in PATCHES:
        patch()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    ended.wait()
    server.stop()


if __name__ == "__main__":
    main()
