"""Pods of Kubernetes: the objects that are rendered, the passive machines, and a pod's start."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from headway.common.errors import ConfigError
from headway.common.wire.addresses import Network
from headway.common.wire.keys import KeyPair
from headway.launch.engine import TERM_S, NodeLost
from headway.launch.engines.choose import facts_of, of_bundle
from headway.launch.engines.kubernetes import pod
from headway.launch.engines.kubernetes.config import KubernetesConfig, check_name
from headway.launch.engines.kubernetes.render import Needs, mib, render
from headway.launch.engines.remote.reach import UnreachableError
from headway.launch.join import tokens
from headway.launch.join.bundle import Bundle
from headway.launch.join.folder import NodeFolder
from headway.launch.lease.base import Holder, Lease
from headway.launch.lease.choose import lease_of
from headway.launch.lease.kubernetes import FILE, ApiLease
from headway.launch.machine import __main__ as joining
from headway.testkit.played.kubernetes_api import KubernetesApi

VERSIONS = ("1.29", "1.31", "1.34")
KINDS = {"Secret", "Lease", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "Job"}
NEEDS = Needs(cpus=4, memory_bytes=3 << 30, shm_bytes=1 << 30, gpus=2)
LIMIT_S = 60.0


def _config(**more: Any) -> KubernetesConfig:
    return KubernetesConfig(**{"image": "headway:0.1", "claim": "data.headway", **more})


def _bundle(folder: Path, name: str = "tiny", **more: Any) -> Bundle:
    facts = facts_of(_config(scratch=str(folder / "scratch"), **more))
    shared, secret = str(folder / "shared"), tokens.new_secret()
    return Bundle("0123abcd", name, 3, "[train]\n", Network(), facts, shared, secret, "k" * 40)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    (tmp_path / "api").mkdir()
    with KubernetesApi(tmp_path / "api") as found:
        found.add("tiny")
        yield found


def _led_by(api: KubernetesApi, folder: Path) -> Bundle:
    """Of a run whose lease is kept there."""
    return _bundle(folder, api=api.url, account=str(api.account))


def _objects(folder: Path, needs: Needs = NEEDS, **more: Any) -> dict[str, dict[str, Any]]:
    bundle = _bundle(folder, **more)
    found = render(bundle, _config(**more), needs, "the key")
    return {one["kind"]: one for one in found}


# ---- the objects --------------------------------------------------------------------------------
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_fits_the_schema_of_kubernetes(tmp_path: Path, version: str) -> None:
    few = dataclasses.replace(NEEDS, gpus=0)
    full = {"namespace": "train", "node_selector": ("example.org/gpu=h200", "zone=")}
    for objects in (_objects(tmp_path, few), _objects(tmp_path, **full)):
        assert set(objects) == KINDS
        for one in objects.values():
            kubernetes_validate.validate(one, version, strict=True)


def test_the_schema_refuses_a_key_it_does_not_know_and_a_wrong_type(tmp_path: Path) -> None:
    for path, value in ((("completionsMode",), "Indexed"), (("completions",), "3")):
        job = copy.deepcopy(_objects(tmp_path)["Job"])
        job["spec"][path[0]] = value
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(job, VERSIONS[0], strict=True)


def test_the_job_has_a_pod_for_each_node_and_starts_each_again(tmp_path: Path) -> None:
    spec = _objects(tmp_path)["Job"]["spec"]
    assert spec["completions"] == spec["parallelism"] == 3
    assert spec["completionMode"] == "Indexed" and spec["podReplacementPolicy"] == "Failed"
    assert spec["backoffLimitPerIndex"] > 1000
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= TERM_S


def test_a_pod_has_the_folders_that_its_bundle_names(tmp_path: Path) -> None:
    config = _config(shared="/mnt/claim", scratch="/fast", python="/opt/bin/python")
    [*_, job] = render(_bundle(tmp_path), config, NEEDS, "")
    spec = job["spec"]["template"]["spec"]
    [container] = spec["containers"]
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert set(mounts.values()) == set(volumes)
    claim = volumes[mounts["/mnt/claim"]]["persistentVolumeClaim"]
    assert claim == {"claimName": "data.headway"}
    assert volumes[mounts["/fast"]]["emptyDir"] == {}
    shm = volumes[mounts["/dev/shm"]]["emptyDir"]
    assert shm == {"medium": "Memory", "sizeLimit": "1024Mi"}
    program, *_, verb, bundle = container["command"]
    assert (program, verb) == ("/opt/bin/python", "pod")
    assert mounts[str(Path(bundle).parent)] == "secret" and Path(bundle).name == pod.BUNDLE


def test_what_a_pod_may_and_needs(tmp_path: Path) -> None:
    spec = _objects(tmp_path, node_selector=("gpu=h200",))["Job"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert spec["nodeSelector"] == {"gpu": "h200"}
    secured = container["securityContext"]
    assert secured["allowPrivilegeEscalation"] is False and secured["capabilities"]["drop"]
    assert container["resources"] == {
        "requests": {"cpu": "4", "memory": "3072Mi"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    needs = dataclasses.replace(NEEDS, gpus=0)
    [alone] = _objects(tmp_path, needs)["Job"]["spec"]["template"]["spec"]["containers"]
    assert "limits" not in alone["resources"]


def test_a_pod_may_read_and_replace_the_lease_of_its_run_and_nothing_else(tmp_path: Path) -> None:
    objects = _objects(tmp_path, namespace="train")
    [rule] = objects["Role"]["rules"]
    assert rule == {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [objects["Lease"]["metadata"]["name"]],
        "verbs": ["get", "update"],
    }
    binding, account = objects["RoleBinding"], objects["ServiceAccount"]["metadata"]["name"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", "tiny")
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account, "namespace": "train"}
    ]
    assert "namespace" not in _objects(tmp_path)["RoleBinding"]["subjects"][0], "the binding's"
    spec = objects["Job"]["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == account and spec["automountServiceAccountToken"] is True
    assert set(objects["Lease"]) == {"apiVersion", "kind", "metadata"}, "applied again: no change"


def test_pods_of_one_run_are_apart_and_reached_by_each_other_only(tmp_path: Path) -> None:
    objects = _objects(tmp_path)
    template = objects["Job"]["spec"]["template"]
    policy = objects["NetworkPolicy"]["spec"]
    [peer] = policy["ingress"][0]["from"]
    [rule] = template["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    for selector in (policy["podSelector"], peer["podSelector"], rule["labelSelector"]):
        assert selector["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert "0123abcd" in selector["matchLabels"].values(), "of this run alone"


def test_only_the_secret_holds_what_is_secret(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path)
    secret, *others = render(bundle, _config(), NEEDS, "the key")
    assert Bundle.from_json(secret["stringData"][pod.BUNDLE], source="it") == bundle
    assert secret["stringData"][pod.CONSOLE_KEY] == "the key"
    assert bundle.secret not in json.dumps(others) and "the key" not in json.dumps(others)


@pytest.mark.parametrize("name", ["Tiny", "a_b", "-a", "a-", "", "a.b", "a" * 62, "ä"])
def test_a_run_whose_name_cannot_be_that_of_a_job_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"run name '{name}' is not a name") as error:
        render(_bundle(tmp_path, name), _config(), NEEDS, "")
    assert error.value.remedy


def test_the_longest_name_leaves_room_for_the_number_of_the_pod(tmp_path: Path) -> None:
    render(_bundle(tmp_path, "a" * 61), _config(), NEEDS, "")
    check_name("claim", ".".join(["a" * 60] * 4), parts=True)


BAD: dict[str, dict[str, Any]] = {
    "claim 'My_Claim'": {"claim": "My_Claim"},
    "claim 'a..b'": {"claim": "a..b"},
    "namespace 'a.b'": {"namespace": "a.b"},
    "image=''": {"image": ""},
    "image='a b'": {"image": "a b"},
    "scratch='x'": {"scratch": "x"},
    "account='x'": {"account": "x"},
    "api='http://api'": {"api": "http://api"},
    "gpu_resource='a b'": {"gpu_resource": "a b"},
    "'gpu' is not a label": {"node_selector": ("gpu",)},
    "'a=b c' is not a label": {"node_selector": ("a=b c",)},
}


@pytest.mark.parametrize(("expected", "wrong"), BAD.items(), ids=BAD)
def test_what_is_wrong_with_the_pods_is_named(expected: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=expected) as error:
        _config(**wrong)
    assert error.value.remedy


def test_sizes_are_rounded_up() -> None:
    assert [mib(size) for size in (1, 1 << 20, (1 << 20) + 1)] == ["1Mi", "1Mi", "2Mi"]


# ---- the machines -------------------------------------------------------------------------------
def test_nothing_is_known_of_a_pod_from_outside(tmp_path: Path) -> None:
    engine = of_bundle(Bundle.from_json(_bundle(tmp_path).to_json(), source="it"))
    asks: list[Callable[[], object]] = [
        engine.start_first,
        lambda: engine.start_node(1, kill_hung=True),
        lambda: engine.logs(1),
    ]
    for ask in asks:
        with pytest.raises(
            UnreachableError, match=r"pod tiny-[01]: (only Kubernetes|it cannot be reached)"
        ) as error:
            ask()
        assert "kubectl" in error.value.remedy
    assert not engine.fence(1, epoch=2) and not engine.has_ended(1)
    engine.lose_node(1)  # Kubernetes has asked it to end; only then may it join again
    engine.stop()
    assert engine.name_of(2) == "tiny-2"
    with pytest.raises(NodeLost, match="none for node 3"):
        engine.start_node(3)


# ---- the start of a pod -------------------------------------------------------------------------
def _start(file: Path, index: str | None) -> subprocess.CompletedProcess[str]:
    """The words of the container, as a process of their own."""
    env = {name: value for name, value in os.environ.items() if name != pod.INDEX}
    env |= {} if index is None else {pod.INDEX: index}
    words = [sys.executable, "-m", "headway.launch.machine", "pod", str(file)]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S)


def _secret(folder: Path, bundle: Bundle) -> Path:
    (folder / "secret").mkdir()
    (folder / "secret" / pod.BUNDLE).write_text(bundle.to_json())
    return folder / "secret" / pod.BUNDLE


@pytest.mark.parametrize("index", [None, "", "3", "-1", "one", "²"])
def test_a_pod_that_is_no_node_ends_with_one_line(tmp_path: Path, index: str | None) -> None:
    done = _start(_secret(tmp_path, _bundle(tmp_path)), index)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "JOB_COMPLETION_INDEX" in line and repr(index or "") in line and "0 to 2" in line
    assert not (tmp_path / "scratch").exists()


def test_a_damaged_bundle_or_none_ends_with_one_line(tmp_path: Path) -> None:
    file = _secret(tmp_path, _bundle(tmp_path))
    file.write_text(file.read_text()[:-30])
    for path, expected in ((file, "does not describe a run"), (tmp_path / "x", "cannot read")):
        done = _start(path, "0")
        assert done.returncode == 2 and expected in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_file_is_of_the_verb_pod_alone() -> None:
    for words in (["pod"], ["init", "bundle.json"]):
        with pytest.raises(SystemExit, match="2"):
            joining.main(words)


def test_a_pod_makes_a_ticket_that_its_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = _bundle(tmp_path)
    for index in range(bundle.nodes):
        monkeypatch.setenv(pod.INDEX, str(index))
        ticket = pod.ticket_of(bundle, "/scratch")
        assert (ticket.node, ticket.folder) == (index, Path(f"/scratch/0123abcd-n{index}"))
        tokens.check(ticket.token, bundle.secret, bundle.run_id, index)
        assert bool(ticket.bundle) == (index == 0), "only the first needs no driver"


def _lead(bundle: Bundle, **more: Any) -> Lease:
    bundle.control.mkdir(parents=True)
    pod.name_lease(bundle)
    lease = lease_of(bundle.control)
    assert isinstance(lease, ApiLease)
    epoch = lease.claim(0)
    assert epoch == 1
    lease.publish(Holder(1, 1, 1, 1, "tcp://10.0.0.1:1", space="another machine", **more))
    return lease


def test_a_pod_of_a_run_that_is_over_ends_well(tmp_path: Path, api: KubernetesApi) -> None:
    bundle = _led_by(api, tmp_path)
    _lead(bundle, is_over=True)
    done = _start(_secret(tmp_path, bundle), "0")
    assert done.returncode == 0 and "the run is over" in done.stdout
    assert not (tmp_path / "scratch").exists()


def test_a_pod_whose_lease_cannot_be_reached_is_started_again(
    tmp_path: Path, api: KubernetesApi
) -> None:
    file = _secret(tmp_path, _led_by(api, tmp_path))
    api.fault = "403"
    done = _start(file, "0")
    [line] = done.stderr.splitlines()
    assert done.returncode == pod.AGAIN and "403" in line and "Role" in line
    (api.account / "namespace").unlink()
    done = _start(file, "0")
    [line] = done.stderr.splitlines()
    assert done.returncode == 2 and "has no ServiceAccount" in line


def test_all_pods_leave_the_same_word_of_where_the_lease_is(
    tmp_path: Path, api: KubernetesApi
) -> None:
    bundle, secret = _led_by(api, tmp_path), tmp_path / "secret"
    texts = set()
    for index in range(2):
        pod.stay(secret, bundle, NodeFolder(tmp_path / f"node{index}"), lambda: 0)
        texts.add((bundle.control / FILE).read_text())
    assert len(texts) == 1
    assert api.requests, "the lease was looked at there"


def test_a_pod_ends_well_only_once_the_run_is_over(tmp_path: Path, api: KubernetesApi) -> None:
    bundle = _led_by(api, tmp_path)
    secret, folder = _secret(tmp_path, bundle).parent, NodeFolder(tmp_path / "node")
    lease = _lead(bundle)

    def finish() -> int:
        lease.publish(Holder(1, 1, 1, 1, "tcp://10.0.0.1:1", space="another", is_over=True))
        return 0

    assert pod.stay(secret, bundle, folder, lambda: 0) == pod.AGAIN
    assert pod.stay(secret, bundle, folder, lambda: 7) == 7
    assert pod.stay(secret, bundle, folder, finish) == 0


def test_the_console_key_lies_where_a_command_in_the_pod_looks(
    tmp_path: Path, api: KubernetesApi
) -> None:
    bundle, key = _led_by(api, tmp_path), KeyPair.generate()
    secret, folder = _secret(tmp_path, bundle).parent, NodeFolder(tmp_path / "node")
    (secret / pod.CONSOLE_KEY).write_bytes(key.to_text())
    pod.stay(secret, bundle, folder, lambda: 0)
    found = folder.path / "runs" / "tiny" / "cluster" / "keys" / "console.key"
    assert KeyPair.load(found) == key, "mode 0600 too"
    folder.install(bundle, 1, keys=folder.key(), is_first=False)
    assert KeyPair.load(found) == key


# ---- who leads when all pods are new ------------------------------------------------------------
def test_the_first_node_leads_again_only_if_nobody_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: KubernetesApi
) -> None:
    bundle = _led_by(api, tmp_path)
    bundle.control.mkdir(parents=True)
    assert not joining.is_led_or_over(bundle.control), "a new run"
    bundle.control.rmdir()
    monkeypatch.setattr(joining, "NO_DRIVER_S", 0.2)
    lease = _lead(bundle)
    assert not joining.is_led_or_over(bundle.control), "its lease does not change"
    me = Holder(1, 1, 1, 1, "tcp://10.0.0.1:1", space="another machine")
    monkeypatch.setattr(joining, "NO_DRIVER_S", LIMIT_S)
    beats = iter(range(1, 1000))
    look = ApiLease.look

    def renewed(self: ApiLease) -> object:
        found = look(self)
        lease.publish(dataclasses.replace(me, beat=next(beats)))
        return found

    monkeypatch.setattr(ApiLease, "look", renewed)
    assert joining.is_led_or_over(bundle.control), "it is renewed"
    monkeypatch.undo()
    lease.publish(dataclasses.replace(me, is_over=True))
    assert joining.is_led_or_over(bundle.control), "it is over: nobody leads it again"
