"""The AWS target: its plans without a network, and make up, status and down on an emulated account.

The emulator shows neither quotas, capacity, EFA, boots, nor what IAM denies.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from headway.launch.engines.remote.config_file import read_config
from headway.launch.engines.ssh.config import HostsConfig

from tests.infra.aws_account import TARGET, Account, Door, missing, run

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def door(account: Account, tmp_path: Path) -> Door:
    return Door(account, tmp_path)


# ---- refusals: one line, nothing made ------------------------------------------------------------
def _refused(door: Door, **env: str) -> str:
    out, err = door("up", code=2, **env)
    assert err.count("\n") == 1 and err.startswith("error: "), err
    assert "Traceback" not in out and not door.cluster.exists()
    return err


def test_what_is_wrong_is_said_in_one_line_before_anything_is_made(door: Door) -> None:
    """The target's own tests have the other variables."""
    assert "VARS is not set" in _refused(door)
    mine = str(door.vars())
    assert "AWS refuses your credentials" in _refused(door, VARS=mine, AWS_ACCESS_KEY_ID="")
    assert "no nowhere/aws on the PATH" in _refused(door, VARS=mine, AWS_CLI="nowhere/aws")
    assert "set YES=1" in _refused(door, VARS=mine)
    assert "nodes=5 exceeds max_nodes=4; raise max_nodes" in _refused(door, VARS=mine, NODES="5")
    door.vars(instance_type="p9.big")  # its message is longer than a line of Terraform's
    assert "t3.medium, or describe it in more_types" in _refused(door, VARS=mine)


def test_down_and_status_of_nothing(door: Door) -> None:
    out, _ = door("down")
    assert "holds no cluster" in out
    door("status", code=1)
    assert not door.cluster.exists()


# ---- a cluster's life ----------------------------------------------------------------------------
def _machines(ec2: Any) -> dict[str, dict[str, Any]]:
    """The living instances by name."""
    states = {"Name": "instance-state-name", "Values": ["pending", "running", "stopped"]}
    pages = ec2.describe_instances(Filters=[states])["Reservations"]
    found = [instance for page in pages for instance in page["Instances"]]
    tags = [{tag["Key"]: tag["Value"] for tag in instance["Tags"]} for instance in found]
    assert all(one["headway-cluster"] == "headway" for one in tags)
    return {one["Name"]: instance for one, instance in zip(tags, found, strict=True)}


def _hook(door: Door, key: str, name: str, **words: str) -> str:
    """Run a hook of hosts.toml, with the script of the sources in place of the machines' own."""
    hosts = tomllib.loads((door.cluster / "hosts.toml").read_text())
    command = [word.format(name=name, **words) for word in hosts[key]]
    assert command[0] == "/opt/headway/machine"
    env = {**door.env, "HEADWAY_CLUSTER": "headway", "HEADWAY_MACHINE_SETTINGS": os.devnull}
    return run([TARGET / "scripts" / "machine.sh", *command[1:]], env, door.folder)[0]


def _check_boot(ec2: Any) -> None:
    """The nodes' first boot is a script that bash accepts, and small enough for EC2."""
    asked = {"LaunchTemplateName": "headway-node", "Versions": ["$Latest"]}
    (version,) = ec2.describe_launch_template_versions(**asked)["LaunchTemplateVersions"]
    data = version["LaunchTemplateData"]
    assert data["InstanceInitiatedShutdownBehavior"] == "stop"
    script = base64.b64decode(data["UserData"])
    assert len(script) < 16384 and b"headway-idle.timer" in script
    subprocess.run(["bash", "-n"], input=script, check=True)


def _check_rights(account: Account) -> None:
    """A machine may stop and start what has its own cluster's tag, and nothing more of EC2."""
    iam = account.client("iam")
    for kind in ("head", "node"):
        asked = {"RoleName": f"headway-us-east-1-{kind}", "PolicyName": "cluster"}
        policy = iam.get_role_policy(**asked)["PolicyDocument"]
        policy = json.loads(policy) if isinstance(policy, str) else policy
        power = [one for one in policy["Statement"] if "ec2:" in json.dumps(one["Action"])]
        by_action = {json.dumps(one["Action"]): one.get("Condition", {}) for one in power}
        stop = '["ec2:StopInstances", "ec2:StartInstances"]'
        assert set(by_action) == {stop, '"ec2:DescribeInstances"'}
        own = {"aws:ResourceTag/headway-cluster": "headway"}
        assert by_action[stop] == {"StringEquals": own}
    iam.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cluster_is_made_repaired_grown_and_removed(account: Account, door: Door) -> None:
    ec2, s3 = account.client("ec2"), account.client("s3")
    asked = {"placement_group": True, "budget_usd_month": 100}
    mine = str(door.vars(nodes=2, **asked))

    # ---- made: the price first, the command to run last, a second plan has nothing to do
    out, _ = door("up", VARS=mine, YES="1")
    assert out.splitlines()[0].startswith("2 x t3.medium at 0.04, the rest 0.22: 0.30 USD per hour")
    assert out.splitlines()[-1].startswith("headway run examples/tiny.toml --cluster /shared/")
    first = _machines(ec2)
    assert set(first) == {"headway-0", "headway-1", "headway-head"}
    assert first["headway-0"]["PrivateIpAddress"] == "10.42.128.16"
    hosts = read_config(HostsConfig, door.cluster / "hosts.toml")
    assert [host.name for host in hosts.hosts] == ["headway-0", "headway-1"]
    _check_boot(ec2)
    _check_rights(account)
    (bucket,) = [one["Name"] for one in s3.list_buckets()["Buckets"]]
    keys = {one["Key"] for one in s3.list_objects_v2(Bucket=bucket)["Contents"]}
    assert keys == {"hosts.toml", "terraform/headway.tfstate"}
    assert not (door.cluster / "terraform.tfstate").exists(), "the state is in the bucket"
    out, _ = door("status")
    assert "headway-0\trunning\t10.42.128.16" in out

    # ---- a node is off, another was ended behind Terraform's back: both are seen
    assert "is off" in _hook(door, "fence", "headway-0")
    ec2.terminate_instances(InstanceIds=[first["headway-1"]["InstanceId"]])
    assert _machines(ec2)["headway-0"]["State"]["Name"] == "stopped"
    out, _ = door("status", code=2)
    assert 'drift: aws_ec2_instance_state.node["0"] ' in out
    assert 'drift: aws_instance.node["1"] ' in out

    # ---- the hook brings back the one, `up` the other at its address, and one more node
    assert "runs again" in _hook(door, "replace", "headway-0", reason="lost")
    door.vars(nodes=2, disk_gib=100, **asked)
    _, err = door("up", VARS=mine, YES="1", code=2)
    assert "error: all nodes would be made anew (t3.medium ami-12c6146b 100 GiB, 1 cards)" in err
    door.vars(nodes=2, shared="fsx", **asked)
    _, err = door("up", VARS=mine, YES="1", code=2)
    assert "on efs and not headway in us-east-1 first zone 10.42.0.0/16 on fsx; undo that" in err
    door.vars(nodes=3, **asked)
    door("up", VARS=mine, YES="1")
    grown = _machines(ec2)
    assert set(grown) == {"headway-0", "headway-1", "headway-2", "headway-head"}
    assert grown["headway-0"]["InstanceId"] == first["headway-0"]["InstanceId"]
    assert grown["headway-1"]["InstanceId"] != first["headway-1"]["InstanceId"]
    assert grown["headway-1"]["PrivateIpAddress"] == "10.42.128.17"
    assert {one["State"]["Name"] for one in grown.values()} == {"running"}
    assert "headway-2" in s3.get_object(Bucket=bucket, Key="hosts.toml")["Body"].read().decode()

    # ---- down: your data are not deleted unasked, what is left is an error, then nothing is
    s3.put_object(Bucket=bucket, Key="data/weights", Body=b"precious")
    _, err = door("down", YES="1", code=2)
    assert "holds 1 objects below data/; copy what you need, then EMPTY=1" in err
    tags = [{"Key": "headway-cluster", "Value": "headway"}]
    specified = [{"ResourceType": "volume", "Tags": tags}]
    volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=specified)
    _, err = door("down", YES="1", EMPTY="1", code=1)
    assert err.splitlines()[-1] == volume["VolumeId"] and not _machines(ec2)
    ec2.delete_volume(VolumeId=volume["VolumeId"])
    out, _ = door("down", YES="1")
    assert "nothing with the tag headway-cluster=headway is left" in out
    assert not door.cluster.exists() and not s3.list_buckets()["Buckets"]
    ec2.close(), s3.close()
