"""API servers: the real one where it has been built, and a fake of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headway.common.polling import wait_until
from headway.testkit.kubernetes.fake import FakeApi
from headway.testkit.kubernetes.played import Namespace
from headway.testkit.kubernetes.served import ServedApi
from headway.testkit.kubernetes.server import RealApi

from tests.kubernetes.outside import LIMIT_S, Console


@pytest.fixture(scope="session")
def real_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    if reason := RealApi.missing():
        pytest.skip(f"no API server of Kubernetes: {reason}")
    with RealApi(tmp_path_factory.mktemp("real")) as api:
        yield api


@pytest.fixture(scope="session")
def fake_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeApi]:
    with FakeApi(tmp_path_factory.mktemp("fake")) as fake:
        yield fake


@pytest.fixture(scope="session", params=["fake", "real"])
def api(request: pytest.FixtureRequest) -> ServedApi:
    found = request.getfixturevalue(f"{request.param}_api")
    assert isinstance(found, ServedApi)
    return found


@pytest.fixture
def namespace(api: ServedApi) -> Iterator[Namespace]:
    with Namespace(api) as made:
        yield made


@pytest.fixture
def real_namespace(real_api: RealApi) -> Iterator[Namespace]:
    with Namespace(real_api) as made:
        yield made


@pytest.fixture
def fake_namespace(fake_api: FakeApi) -> Iterator[Namespace]:
    with Namespace(fake_api) as made:
        yield made


@pytest.fixture
def console(tmp_path: Path, namespace: Namespace) -> Iterator[Console]:
    made = Console(tmp_path, namespace)
    yield made
    made.close()


@pytest.fixture
def fake_console(tmp_path: Path, fake_namespace: Namespace) -> Iterator[Console]:
    made = Console(tmp_path, fake_namespace)
    yield made
    made.close()


@pytest.fixture
def until(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], None]:
    """Wait, and show what the command printed if that takes too long."""
    names = [name for name in ("console", "fake_console") if name in request.fixturenames]
    console = request.getfixturevalue(names[0])

    def wait(condition: Callable[[], Any]) -> None:
        assert wait_until(condition, LIMIT_S, every_s=0.05), console.said()

    return wait
