"""The driver's lease at a real API server: the tests of the lease, and what only it can show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headway.common.polling import wait_until
from headway.launch.lease import kubernetes_api as api_module
from headway.launch.lease.base import Holder, Lease, LeaseView
from headway.launch.lease.choose import lease_of
from headway.launch.lease.kubernetes import STOP, LeaseName
from headway.launch.lease.kubernetes_api import MERGE_PATCH, ApiError
from headway.testkit.kubernetes.certificates import claims_of
from headway.testkit.kubernetes.played import Namespace
from headway.testkit.kubernetes.server import RealApi

# ruff: noqa: F401 - the tests that are collected here are these, with the fixtures below
from libs.launch.tests.lease.test_api_lease import (
    _error,
    _holder,
    _lease,
    test_a_claim_between_read_and_write_wins,
    test_a_holder_that_was_overtaken_learns_it_by_the_conflict,
    test_a_late_renewal_does_not_undo_a_resignation,
    test_a_new_token_is_used_at_once,
    test_a_server_that_is_away_is_an_error_until_it_is_back,
    test_of_two_claimants_at_once_exactly_one_wins,
)
from libs.launch.tests.lease.test_lease import (
    test_a_holder_on_another_machine_is_never_looked_up_here,
    test_a_record_tells_who_leads,
    test_a_superseded_holder_learns_it_at_its_next_renewal,
    test_each_renewal_is_seen,
    test_of_many_claimants_one_gets_the_epoch,
    test_who_leads_elsewhere_shows_it_by_renewals,
    test_who_resigns_says_so,
)

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


class Account:
    """The lease of a run and the account of its pods, with the faces of the played server."""

    def __init__(self, real: RealApi, namespace: Namespace, folder: Path) -> None:
        self._real, self._namespace, self.account = real, namespace, folder / "account"
        self.url, self.namespace = real.url, namespace.name
        admin = real.client()
        version = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        for name in ("tiny", "other"):
            body = {**version, "metadata": {"name": name}}
            admin.json("POST", LEASES.format(self.namespace), body)
        accounts = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        namespace.create(accounts, "", {"kind": "ServiceAccount", "metadata": {"name": "tiny"}})
        rule = {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["tiny"],
            "verbs": ["get", "update"],
        }
        namespace.grant(f"system:serviceaccount:{self.namespace}:tiny", [rule])
        self.account.mkdir()
        (self.account / "ca.crt").write_bytes(real.authority.certificate.read_bytes())
        (self.account / "namespace").write_text(self.namespace)
        self.rotate()
        self.objects = _Objects(self)

    def rotate(self) -> None:
        (self.account / "token").write_text(self._namespace.token_of("tiny"))

    def stop(self) -> None:
        self._real.stop()

    def start(self) -> None:
        self._real.start()

    def get(self) -> dict[str, Any]:
        """The object, as the administrator sees it."""
        return self._real.client().json("GET", f"{LEASES.format(self.namespace)}/tiny")


class _Objects:
    """``objects[PATH]`` of the played server."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def __getitem__(self, _: str) -> dict[str, Any]:
        return self._account.get()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no outage."""
    monkeypatch.setattr(api_module, "LIMIT_S", 20.0)


@pytest.fixture
def api(real_api: RealApi, real_namespace: Namespace, tmp_path: Path) -> Account:
    made = Account(real_api, real_namespace, tmp_path)
    LeaseName(made.url, made.namespace, "tiny", str(made.account)).save(tmp_path)
    return made


@pytest.fixture
def make_lease(api: Account, tmp_path: Path) -> Iterator[Callable[..., Lease]]:
    del api
    yield lambda fence=lambda _: True: lease_of(tmp_path, fence)


def test_a_token_that_expires_is_refused_until_there_is_a_new_one(
    real_api: RealApi, api: Account, tmp_path: Path
) -> None:
    lease, file = _lease(tmp_path), api.account / "token"
    claims = claims_of(file.read_text())
    # the server accepts a token for a minute more, and remembers for ten seconds that it did
    file.write_text(real_api.authority.token(claims, expires_in_s=-57.0))
    lease.publish(_holder(1, 1))

    def is_refused() -> bool:
        try:
            lease.look()
        except ApiError as error:
            assert error.status == 401 and "delete the pod" in error.remedy
            return True
        return False

    assert wait_until(is_refused, 60.0, every_s=0.2)
    assert "answers with 401" in _error(lambda: lease.claim(1))
    api.rotate()
    lease.publish(_holder(1, 2))
    assert lease.look() == LeaseView(1, _holder(1, 2))


@pytest.mark.usefixtures("api")
def test_a_server_that_hangs_is_an_error_within_its_limit_and_passes(
    real_api: RealApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = _lease(tmp_path)
    assert lease.claim(0) == 1
    lease.publish(_holder(1, 1))
    monkeypatch.setattr(api_module, "LIMIT_S", 0.3)
    real_api.freeze()
    try:
        assert "timed out" in _error(lease.look)
        assert "timed out" in _error(lambda: lease.claim(1))
        assert "timed out" in _error(lambda: lease.publish(_holder(1, 2)))
    finally:
        real_api.thaw()
    monkeypatch.setattr(api_module, "LIMIT_S", 20.0)
    view = lease.look()
    assert view.claimed in (1, 2), "a claim that timed out may have been made"


def test_a_pod_may_use_its_own_lease_and_no_other(
    real_api: RealApi, api: Account, tmp_path: Path
) -> None:
    other = LeaseName(api.url, api.namespace, "other", str(api.account)).lease(lambda _: True)
    assert "answers with 403" in _error(other.look)
    client = real_api.client((api.account / "token").read_text())
    for method, path in (("POST", LEASES), ("GET", "/api/v1/namespaces/{}/secrets")):
        body = {"metadata": {"name": "x"}} if method == "POST" else None
        with pytest.raises(ApiError, match=r"answers with 403.*system:serviceaccount"):
            client.json(method, path.format(api.namespace), body)
    _lease(tmp_path).look()


def test_a_stop_that_a_console_asks_for_reaches_every_look_and_outlives_renewals(
    real_api: RealApi, api: Account, tmp_path: Path
) -> None:
    lease = _lease(tmp_path)
    assert lease.claim(0) == 1
    lease.publish(_holder(1, 1))
    assert not lease.look().is_to_stop
    patch = {"metadata": {"annotations": {STOP: "true"}}}
    path = f"{LEASES.format(api.namespace)}/tiny"
    real_api.client().json("PATCH", path, patch, media=MERGE_PATCH)
    lease.publish(_holder(1, 2))
    assert lease.look() == LeaseView(1, _holder(1, 2), is_to_stop=True)
    assert json.loads(api.get()["metadata"]["annotations"]["headway/holder"])["beat"] == 2
