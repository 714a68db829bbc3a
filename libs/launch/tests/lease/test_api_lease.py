"""The lease as an object of Kubernetes: who wins, and what a server that fails does to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from headway.common.errors import InputError
from headway.launch.join import client
from headway.launch.lease import kubernetes as lease_module
from headway.launch.lease import kubernetes_api as api_module
from headway.launch.lease.base import Holder, Lease, LeaseView, SupersededError
from headway.launch.lease.choose import lease_of
from headway.launch.lease.file import FileLease
from headway.launch.lease.kubernetes import FILE, HOLDER, ApiLease, LeaseName
from headway.launch.lease.kubernetes_api import ApiError
from headway.testkit.played.kubernetes_api import BODIES, LEASES, KubernetesApi

PATH = LEASES.format("train", "tiny")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    (tmp_path / "api").mkdir()
    with KubernetesApi(tmp_path / "api") as found:
        found.add("tiny")
        LeaseName(found.url, "train", "tiny", str(found.account)).save(tmp_path)
        yield found


def _lease(folder: Path) -> ApiLease:
    found = lease_of(folder)
    assert isinstance(found, ApiLease)
    return found


def _holder(epoch: int, beat: int = 0, **more: Any) -> Holder:
    return Holder(epoch, 2, 9, 9, "tcp://10.0.0.1:1", "key", beat, space="elsewhere", **more)


def _error(work: Callable[[], object]) -> str:
    with pytest.raises(OSError, match="API server of Kubernetes") as error:
        work()
    assert isinstance(error.value, ApiError) and "\n" not in str(error.value)
    return str(error.value)


# ---- the object ---------------------------------------------------------------------------------
def test_the_object_is_a_lease_that_people_can_read(tmp_path: Path, api: KubernetesApi) -> None:
    lease = _lease(tmp_path)
    assert lease.claim(0) == 1
    lease.publish(_holder(1))
    found = api.objects[PATH]
    for version in ("1.29", "1.31", "1.34"):
        kubernetes_validate.validate(found, version, strict=True)
    spec = found["spec"]
    assert (spec["leaseTransitions"], spec["holderIdentity"]) == (1, "node-2")
    assert spec["renewTime"].endswith("Z")
    assert json.loads(found["metadata"]["annotations"][HOLDER])["endpoint"] == "tcp://10.0.0.1:1"


def test_what_others_keep_in_the_object_stays(tmp_path: Path, api: KubernetesApi) -> None:
    api.objects[PATH]["metadata"]["annotations"] = {"example.org/a": "b"}
    api.objects[PATH]["spec"] = {"strategy": "x"}
    lease = _lease(tmp_path)
    assert lease.claim(0) == 1
    lease.publish(_holder(1))
    found = api.objects[PATH]
    assert found["metadata"]["annotations"]["example.org/a"] == "b"
    assert found["spec"]["strategy"] == "x" and found["metadata"]["uid"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"epoch": 1}', '{"epoch": "1", "node": 0}', "[" * 100_000]
)
def test_a_damaged_annotation_shows_no_holder(
    tmp_path: Path, api: KubernetesApi, text: str
) -> None:
    lease = _lease(tmp_path)
    assert lease.claim(0) == 1
    api.objects[PATH]["metadata"]["annotations"] = {HOLDER: text}
    assert lease.look() == LeaseView(1, None)
    lease.publish(_holder(1))
    assert lease.look() == LeaseView(1, _holder(1))


@pytest.mark.parametrize("spec", [{"leaseTransitions": "1"}, {"leaseTransitions": -1}, [], "x"])
def test_a_damaged_object_is_an_error(tmp_path: Path, api: KubernetesApi, spec: Any) -> None:
    api.objects[PATH]["spec"] = spec
    lease = _lease(tmp_path)
    works: list[Callable[[], object]] = [
        lease.look,
        lambda: lease.claim(0),
        lambda: lease.publish(_holder(1)),
    ]
    for work in works:
        with pytest.raises(ApiError, match="the Lease object has"):
            work()


# ---- several at once ----------------------------------------------------------------------------
@pytest.mark.usefixtures("api")
def test_of_two_claimants_at_once_exactly_one_wins(tmp_path: Path) -> None:
    leases = [_lease(tmp_path) for _ in range(2)]
    gate = threading.Barrier(2)

    def claim(lease: Lease, after: int) -> int | None:
        gate.wait()
        return lease.claim(after)

    with ThreadPoolExecutor(2) as pool:
        for after in range(50):
            found = list(pool.map(claim, leases, [after] * 2))
            assert sorted(found, key=str) == [after + 1, None]


@pytest.mark.usefixtures("api")
def test_a_claim_between_read_and_write_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, other = _lease(tmp_path), _lease(tmp_path)
    get = lease._object.get

    def overtaken() -> dict[str, Any]:
        found = get()
        assert other.claim(0) == 1
        return found

    monkeypatch.setattr(lease._object, "get", overtaken)
    assert lease.claim(0) is None


def test_a_renewal_by_an_old_version_reads_again_and_succeeds(
    tmp_path: Path, api: KubernetesApi
) -> None:
    lease = _lease(tmp_path)
    lease.publish(_holder(1, 1))
    api.requests.clear()
    lease.publish(_holder(1, 2))
    assert api.requests == [f"PUT {PATH}"], "one request while nobody else writes"
    metadata = dict(api.objects[PATH]["metadata"], resourceVersion="999", labels={"a": "b"})
    api.objects[PATH] = {**api.objects[PATH], "metadata": metadata}
    lease.publish(_holder(1, 3))
    assert lease.look().holder == _holder(1, 3)
    assert api.objects[PATH]["metadata"]["labels"] == {"a": "b"}


def test_a_holder_that_was_overtaken_learns_it_by_the_conflict(
    tmp_path: Path, api: KubernetesApi
) -> None:
    lease = _lease(tmp_path)
    lease.publish(_holder(1))
    assert _lease(tmp_path).claim(1) == 2
    with pytest.raises(SupersededError, match="epoch 2 was claimed"):
        lease.publish(_holder(1, 2))
    assert api.objects[PATH]["spec"]["leaseTransitions"] == 2
    assert lease.look().holder == _holder(1), "the late renewal changed nothing"


@pytest.mark.usefixtures("api")
def test_a_late_renewal_does_not_undo_a_resignation(tmp_path: Path) -> None:
    late, lease = _lease(tmp_path), _lease(tmp_path)
    late.publish(_holder(1, 1))
    lease.publish(_holder(1, 3, has_resigned=True))
    late.publish(_holder(1, 2))
    assert lease.look().holder == _holder(1, 3, has_resigned=True)


@pytest.mark.usefixtures("api")
def test_endless_conflicts_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = _lease(tmp_path)
    monkeypatch.setattr(lease._object, "put", lambda _: None)
    with pytest.raises(OSError, match="changed by others 5 times"):
        lease.publish(_holder(1))


# ---- a server that fails ------------------------------------------------------------------------
FAULTS = {
    "500": "answers with 500",
    "429": "answers with 429",
    "401": "the pod's ServiceAccount token",
    "403": "Role or RoleBinding is missing: apply the manifests again",
    "404": "apply the manifests",
    "redirect": "answers with 302",
    "huge": "more than 1048576 bytes",
    "garbage": "cannot be used",
    "deep": "cannot be used",
    "list": "not the object",
    "bare": "not the object",
    "hang": "timed out",
    "drip": "timed out",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_is_one_sentence_and_passes(
    tmp_path: Path, api: KubernetesApi, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(BODIES) <= set(FAULTS)
    monkeypatch.setattr(api_module, "LIMIT_S", 0.2 if fault in ("hang", "drip") else 30.0)
    lease = _lease(tmp_path)
    assert lease.claim(0) == 1
    api.fault = fault
    for work in (lease.look, lambda: lease.claim(1), lambda: lease.publish(_holder(1))):
        text = _error(work)
        assert FAULTS[fault] in text and api.url in text
    assert all(request.endswith(PATH) for request in api.requests), "no redirect is followed"
    api.fault = ""
    lease.publish(_holder(1))
    assert lease.look() == LeaseView(1, _holder(1))


def test_a_server_that_is_away_is_an_error_until_it_is_back(
    tmp_path: Path, api: KubernetesApi
) -> None:
    lease = _lease(tmp_path)
    lease.publish(_holder(1))
    api.stop()
    assert "refused" in _error(lambda: lease.publish(_holder(1, 2)))
    assert "refused" in _error(lease.look)
    api.start()
    lease.publish(_holder(1, 3))
    assert lease.look().holder == _holder(1, 3)


def test_a_new_token_is_used_at_once(tmp_path: Path, api: KubernetesApi) -> None:
    lease = _lease(tmp_path)
    lease.publish(_holder(1))
    api.rotate()
    lease.publish(_holder(1, 2))
    (api.account / "token").write_text("old")
    assert "answers with 401" in _error(lease.look)
    (api.account / "token").write_text("a\nb")
    assert "cannot be used" in _error(lease.look)
    (api.account / "token").unlink()
    assert "No such file" in _error(lease.look)


def test_a_server_of_another_authority_gets_no_token(tmp_path: Path, api: KubernetesApi) -> None:
    (tmp_path / "other").mkdir()
    with KubernetesApi(tmp_path / "other") as other:
        other.add("tiny")
        lease = LeaseName(other.url, "train", "tiny", str(api.account)).lease(lambda _: True)
        assert "certificate" in _error(lease.look)
        assert not other.requests


@pytest.mark.usefixtures("api")
def test_a_proxy_of_the_environment_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert _lease(tmp_path).claim(0) == 1


def test_who_joins_waits_for_a_server_that_is_away(
    tmp_path: Path, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module.ApiLease, "look_s", 0.01)
    api.fault = "500"
    ticket: Any = type("T", (), {"control": str(tmp_path), "node": 1, "run_id": "r", "token": ""})
    monkeypatch.setattr(client, "this_machine", lambda *_, **__: None)
    keys: Any = type("K", (), {"public": b""})
    with pytest.raises(client.DeadlineError, match=r"lease cannot be read.*answers with 500"):
        client.join(ticket, keys, limit_s=0.3)


# ---- which lease a run has ----------------------------------------------------------------------
def test_a_folder_without_word_of_kubernetes_keeps_its_lease(tmp_path: Path) -> None:
    assert isinstance(lease_of(tmp_path), FileLease)
    assert isinstance(lease_of(tmp_path / "absent"), FileLease)


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"server": 1}'])
def test_a_damaged_word_names_the_file_and_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(InputError, match=FILE) as error:
        lease_of(tmp_path)
    assert "delete any pod" in error.value.remedy


def test_outside_of_a_pod_the_error_says_where_to_run(tmp_path: Path) -> None:
    LeaseName("https://x", "train", "tiny", str(tmp_path / "account")).save(tmp_path)
    with pytest.raises(InputError, match="lease of run tiny is kept by Kubernetes") as error:
        lease_of(tmp_path)
    assert "kubectl exec" in error.value.remedy and "\n" not in str(error.value)
