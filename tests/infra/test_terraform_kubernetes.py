"""The target ``kubernetes`` with the real terraform: what `up` creates, `down` removes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.testkit.kubernetes.fake import FakeApi
from headway.testkit.kubernetes.served import ADMIN, NOBODY

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "infra" / "terraform"
LIMIT_S = 120.0

pytestmark = pytest.mark.skipif(
    shutil.which("terraform") is None, reason="no terraform on the PATH"
)


class Door:
    """``make up``, ``down`` and ``status`` of the target without make, at a fake API server."""

    def __init__(self, folder: Path, api: FakeApi) -> None:
        # the name of the default folder, which every checkout has
        self.folder, self.api, self.cluster = folder, api, folder / "clusters" / "kubernetes"
        folder.mkdir(exist_ok=True)
        self.use(ADMIN)
        self.env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "CLUSTER_DIR": str(self.cluster),
            "KUBECONFIG": "",
        }

    def use(self, token: str) -> None:
        self.api.kubeconfig(self.folder / "kubeconfig", {"token": token}, namespace="train")
        lines = ['image = "h:1"', 'claim = "data"', 'kubeconfig = "kubeconfig"']
        (self.folder / "kubernetes.toml").write_text("\n".join(lines))

    def __call__(self, verb: str, *, code: int = 0, **env: str) -> str:
        """What a script prints, with its errors if it is to fail."""
        done = subprocess.run(
            [str(SCRIPTS / f"{verb}.sh"), "kubernetes"],
            env={**self.env, **env}, cwd=self.folder, capture_output=True, text=True,
            timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == code, f"{verb}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr * bool(code)

    def there(self, path: str) -> list[str]:
        found = self.api.client().json("GET", path)["items"]
        return [one["metadata"]["name"] for one in found]


CLAIMS = "/api/v1/namespaces/train/persistentvolumeclaims"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with FakeApi(tmp_path / "api") as api:
        yield Door(tmp_path, api)


def test_up_creates_what_is_asked_for_and_down_removes_it(door: Door) -> None:
    settings = door.folder / "my.tfvars"
    settings.write_text('create_namespace = true\nclaim_size = "1Gi"\n')
    given = {"KUBERNETES": "kubernetes.toml", "VARS": str(settings)}
    assert "headway run" in door("up", **given).splitlines()[-1]
    assert door.there("/api/v1/namespaces") == ["train"] and door.there(CLAIMS) == ["data"]
    assert json.loads((door.cluster / "cluster.json").read_text())["engine"]["kind"] == "kubernetes"
    door("status", VARS=str(settings))

    door.api.client().json("DELETE", f"{CLAIMS}/data")
    assert "terraform_data.claim[0]" in door("status", code=2, VARS=str(settings))
    door("up", **given)
    assert door.there(CLAIMS) == ["data"], "it is made again"

    assert "DELETE_CLAIM=1" in door("down", code=2, VARS=str(settings))
    assert door.there(CLAIMS) == ["data"]
    door("down", VARS=str(settings), DELETE_CLAIM="1")
    assert door.there("/api/v1/namespaces") == [] and door.there(CLAIMS) == []
    assert not door.cluster.exists(), "nothing is left here"


@pytest.mark.slow
def test_no_change_of_the_variables_deletes_data(door: Door) -> None:
    """The claim, and with the namespace one that kubectl has made in it."""
    settings = door.folder / "my.tfvars"
    given = {"KUBERNETES": "kubernetes.toml", "VARS": str(settings)}
    settings.write_text('create_namespace = true\nclaim_size = "1.5Ti"\n')
    door("up", **given)
    settings.write_text('create_namespace = true\nclaim_size = "2Ti"\n')
    assert "The claim was made with 1.5Ti" in door("up", code=1, **given)
    settings.write_text("create_namespace = true\n")
    assert "deletes the data of 1 claim: data" in door("up", code=1, **given)
    door("up", DELETE_CLAIM="1", **given)
    assert door.there("/api/v1/namespaces") == ["train"] and door.there(CLAIMS) == []

    door.api.client().json("POST", CLAIMS, {"metadata": {"name": "by-kubectl"}})
    assert "deletes the data of 1 claim: by-kubectl" in door("down", code=2, VARS=str(settings))
    settings.write_text("")
    assert "deletes the data of 1 claim: by-kubectl" in door("up", code=1, **given)
    assert door.there("/api/v1/namespaces") == ["train"]
    door("down", VARS=str(settings), DELETE_CLAIM="1")
    assert door.there("/api/v1/namespaces") == [] and not door.cluster.exists()


@pytest.mark.slow
def test_another_cluster_of_that_name_keeps_what_it_has_made(door: Door) -> None:
    settings = door.folder / "my.tfvars"
    settings.write_text("create_namespace = true\n")
    given = {"KUBERNETES": "kubernetes.toml", "VARS": str(settings)}
    door("up", **given)
    other = Door(door.folder / "other", door.api)
    assert "exists, and this cluster has not made it" in other("up", code=1, **given)
    settings.write_text("")
    other("up", **given)
    other("down", VARS=str(settings))
    assert door.there("/api/v1/namespaces") == ["train"]
    assert "NODES=2" in door("up", code=2, NODES="2", **given)


def test_a_user_without_rights_and_a_claim_of_somebody_else_create_nothing(door: Door) -> None:
    door.use(NOBODY)
    said = door("up", code=2, KUBERNETES="kubernetes.toml")
    assert "may not create" in said and not door.cluster.exists()
    assert "KUBERNETES is not set" in door("up", code=2)
    door.use(ADMIN)
    admin = door.api.client()
    admin.json("POST", "/api/v1/namespaces", {"metadata": {"name": "train"}})
    admin.json("POST", CLAIMS, {"metadata": {"name": "data"}})
    settings = door.folder / "my.tfvars"
    settings.write_text('claim_size = "1Gi"\n')
    said = door("up", code=1, KUBERNETES="kubernetes.toml", VARS=str(settings))
    assert "exists, and this cluster has not made it" in said
    door("down", VARS=str(settings))
    assert not door.cluster.exists(), "nothing was made, so nothing is left"
    settings.write_text("")
    door("up", KUBERNETES="kubernetes.toml", VARS=str(settings))
    door("down", VARS=str(settings))
    assert door.there(CLAIMS) == ["data"], "what somebody else has made stays"
