"""Every manifest of a run, taken by a real API server without being kept."""

from __future__ import annotations

from typing import Any

import pytest
from headway.common.config import load
from headway.console.pods.kinds import BY_NAME
from headway.console.pods.manifests import manifests
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.lease.kubernetes_api import ApiError
from headway.testkit.kubernetes.played import Namespace
from headway.testkit.kubernetes.server import RealApi
from headway.trainer.config import RunConfig

from tests.kubernetes.outside import TINY


def _lost(sent: Any, kept: Any, path: str = "") -> set[str]:
    """Paths of what was sent and is not kept."""
    if isinstance(sent, dict):
        kept = kept if isinstance(kept, dict) else {}
        found: set[str] = set()
        for key, value in sent.items():
            where = f"{path}.{key}".lstrip(".")
            found |= _lost(value, kept[key], where) if key in kept else {where}
        return found
    if isinstance(sent, list):
        pairs = zip(sent, kept or [None] * len(sent), strict=True)
        lost = [_lost(a, b, f"{path}.{number}") for number, (a, b) in enumerate(pairs)]
        return set().union(*lost)
    return set() if sent == kept else {path}


def _objects(namespace: Namespace) -> list[dict[str, Any]]:
    pods = KubernetesConfig("headway:0.1", "data", namespace.name, node_selector=("zone=a",))
    config = load(RunConfig, [TINY], ["train.device=gpu"])
    return manifests(config, pods, "tiny")


def _job(namespace: Namespace) -> dict[str, Any]:
    *_, job = _objects(namespace)
    return job


def test_a_real_server_takes_every_manifest_as_far_as_it_knows_its_fields(
    real_api: RealApi, real_namespace: Namespace
) -> None:
    admin, lost = real_api.client(), {}
    for one in _objects(real_namespace):
        path = BY_NAME[one["kind"]].path(real_namespace.name, dryRun="All")
        lost[one["kind"]] = _lost(one, admin.json("POST", path, one))
    schema = admin.json("GET", "/openapi/v2")["definitions"]["io.k8s.api.batch.v1.JobSpec"]
    unknown = _job(real_namespace)["spec"].keys() - schema["properties"].keys()
    print(f"this server does not know of the Job: {', '.join(sorted(unknown)) or 'nothing'}")
    assert lost.pop("Job") == {f"spec.{key}" for key in unknown}
    assert {kind: paths for kind, paths in lost.items() if paths} == {"Secret": {"stringData"}}, (
        "it is kept as data"
    )
    assert real_namespace.everything() == [], "nothing was kept"


@pytest.mark.parametrize("wrong", [{"parallelism": "three"}, {"template": {"spec": {}}}])
def test_a_real_server_refuses_a_job_that_is_wrong(
    real_api: RealApi, real_namespace: Namespace, wrong: dict[str, Any]
) -> None:
    job = _job(real_namespace)
    job["spec"].update(wrong)
    path = BY_NAME["Job"].path(real_namespace.name, dryRun="All")
    with pytest.raises(ApiError, match=r"answers with (400|422): "):
        real_api.client().json("POST", path, job)
