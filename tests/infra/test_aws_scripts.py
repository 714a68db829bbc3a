"""Scripts on AWS machines: the hooks stop their own cluster's machines alone, idle nodes stop."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.infra.aws_account import TARGET, Account, run

SCRIPTS = TARGET / "scripts"
AN_HOUR_S = 3600.0


# ---- hooks ---------------------------------------------------------------------------------------
@pytest.fixture
def ec2(account: Account) -> Iterator[Any]:
    client = account.client("ec2")
    yield client
    client.close()


def _make(ec2: Any, cluster: str, name: str) -> str:
    tags = [{"Key": "headway-cluster", "Value": cluster}, {"Key": "Name", "Value": name}]
    made = ec2.run_instances(
        ImageId="ami-12c6146b",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    return str(made["Instances"][0]["InstanceId"])


def _state(ec2: Any, instance: str) -> str:
    (found,) = ec2.describe_instances(InstanceIds=[instance])["Reservations"]
    return str(found["Instances"][0]["State"]["Name"])


def _machine(account: Account, cluster: str, *words: str, code: int = 0) -> tuple[str, str]:
    env = {**account.env, "HEADWAY_CLUSTER": cluster, "HEADWAY_MACHINE_SETTINGS": os.devnull}
    return run([SCRIPTS / "machine.sh", *words], env, SCRIPTS, code)


def test_hooks_stop_and_start_the_machine_of_their_own_cluster(account: Account, ec2: Any) -> None:
    ours, other = _make(ec2, "ours", "n-0"), _make(ec2, "theirs", "n-0")
    gone = _make(ec2, "ours", "n-0")
    ec2.terminate_instances(InstanceIds=[gone])

    out, _ = _machine(account, "ours", "fence", "n-0")
    assert f"n-0 ({ours}) is off" in out
    assert (_state(ec2, ours), _state(ec2, other)) == ("stopped", "running")
    _machine(account, "ours", "fence", "n-0")  # one that is off is off

    out, _ = _machine(account, "ours", "replace", "n-0", "its GPU fell off the bus")
    assert "runs again, replaced because: its GPU fell off the bus" in out
    assert (_state(ec2, ours), _state(ec2, other)) == ("running", "running")


def test_hooks_say_why_they_fail(account: Account, ec2: Any) -> None:
    _, err = _machine(account, "ours", "fence", "n-9", code=1)
    assert err.startswith("error: cluster ours has no machine n-9; `make up")
    _make(ec2, "twins", "n-0"), _make(ec2, "twins", "n-0")
    _, err = _machine(account, "twins", "replace", "n-0", "why", code=1)
    assert "has several machines n-0" in err
    _, err = _machine(account, "ours", "fence", code=1)
    assert err.startswith("error: no machine was named")


# ---- idle nodes ----------------------------------------------------------------------------------
class Idle:
    """The script as its timer runs it, with a file in place of powering off."""

    def __init__(self, folder: Path) -> None:
        self.mark, self.off = folder / "last-run", folder / "off"
        self.variable = f"HEADWAY_TEST_{os.getpid()}"
        self.env = {
            "PATH": os.environ["PATH"],
            "HEADWAY_MACHINE_SETTINGS": os.devnull,
            "HEADWAY_IDLE_MARK": str(self.mark),
            "HEADWAY_IDLE_MIN": "30",
            "HEADWAY_IDLE_VARIABLE": self.variable,
            "HEADWAY_POWER_OFF": f"touch {self.off}",
        }

    def __call__(self) -> bool:
        """Whether the machine would be off now."""
        run([SCRIPTS / "idle.sh"], self.env, SCRIPTS)
        return self.off.exists()

    def wait(self, seconds: float) -> None:
        then = self.mark.stat().st_mtime - seconds
        os.utime(self.mark, (then, then))


def test_a_node_stops_when_no_run_has_been_on_it_for_the_time_given(tmp_path: Path) -> None:
    idle = Idle(tmp_path)
    assert not idle(), "it has just booted"
    idle.wait(1000.0)
    assert not idle(), "not yet"
    idle.wait(1000.0)
    assert idle()


def test_a_node_with_a_run_stays(tmp_path: Path) -> None:
    idle = Idle(tmp_path)
    assert not idle()
    words = [sys.executable, "-c", "input()"]
    env = {**os.environ, idle.variable: "1"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=env) as run_of_it:
        try:
            idle.wait(AN_HOUR_S)
            assert not idle(), "a process of a run is on it"
            assert time.time() - idle.mark.stat().st_mtime < AN_HOUR_S / 2, "the time starts anew"
        finally:
            run_of_it.communicate(b"\n")
    idle.wait(AN_HOUR_S)
    assert idle(), "the run has ended"


# ---- the list of machines on the head node -------------------------------------------------------
FAKE_AWS = """#!/bin/sh
for last; do :; done
cp "$FAKE_BUCKET/hosts.toml" "$last"
"""
FAKE_HEADWAY = """#!/bin/sh
echo "$*" >> "$FAKE_LOG"
[ "$2" != remove ] || [ ! -e "$FAKE_BUCKET/live" ] || { echo "error: a run is live" >&2; exit 2; }
[ "$2" != create ] || { mkdir -p "$3" && touch "$3/cluster.json"; }
"""


@pytest.fixture
def head(tmp_path: Path) -> dict[str, str]:
    """The environment of ``headway-cluster`` with commands that only note what was asked."""
    for name, text in (("aws", FAKE_AWS), ("headway", FAKE_HEADWAY)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "bucket").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "bucket" / "hosts.toml").write_text("one")
    return {
        "PATH": os.environ["PATH"],
        "AWS_CLI": str(tmp_path / "aws"),
        "HEADWAY": str(tmp_path / "headway"),
        "HEADWAY_MACHINE_SETTINGS": os.devnull,
        "HEADWAY_SHARED": str(tmp_path / "shared"),
        "HEADWAY_BUCKET": "bucket",
        "HEADWAY_RUN_COMMAND": "headway run",
        "FAKE_BUCKET": str(tmp_path / "bucket"),
        "FAKE_LOG": str(tmp_path / "log"),
    }


def test_the_cluster_is_made_anew_when_its_machines_changed(
    head: dict[str, str], tmp_path: Path
) -> None:
    script, hosts = SCRIPTS / "cluster.sh", tmp_path / "shared" / "hosts.toml"
    out, _ = run([script], head, tmp_path)
    assert out.splitlines()[-1].endswith("headway run") and hosts.read_text() == "one"
    asked = (tmp_path / "log").read_text()
    run([script], head, tmp_path)
    assert (tmp_path / "log").read_text() == asked, "the same list changes nothing"

    (tmp_path / "bucket" / "hosts.toml").write_text("two")
    (tmp_path / "bucket" / "live").touch()
    _, err = run([script], head, tmp_path, code=2)
    assert "a run is live" in err and hosts.read_text() == "one"
    (tmp_path / "bucket" / "live").unlink()
    run([script], head, tmp_path)
    assert hosts.read_text() == "two"
