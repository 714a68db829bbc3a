"""A service whose process works while nothing listens at its socket is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId
from headway.common.wire.server import Server
from headway.controller.executor.reach import Reach
from headway.controller.executor.services import NEEDED, Services


@pytest.fixture
def services() -> Services:
    """Both of the services that ranks need, serving."""
    made, me = Services(5.0, 60.0), ProcessId.current()
    for name in NEEDED:
        made.keep(name, 0.0, me)
        made.moved(name, me, 1, 1.0)
    return made


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, Server]]:
    made = {name: Server(_endpoint(tmp_path, name), {}) for name in NEEDED}
    yield made
    for server in made.values():
        server.close()


def _endpoint(folder: Path, name: str) -> str:
    return f"ipc://{folder}/{name}.sock"


def test_a_socket_that_is_gone_for_two_looks_is_named_until_it_is_back(
    tmp_path: Path, services: Services, servers: dict[str, Server]
) -> None:
    reach = Reach(lambda name: _endpoint(tmp_path, name))
    assert [reach.look(services) for _ in range(3)] == ["", "", ""]
    (tmp_path / "dataloader.sock").unlink()
    assert reach.look(services) == "", "the service may not have noticed yet"
    gone = f"dataloader does not answer: nothing listens at ipc://{tmp_path}/dataloader.sock"
    assert [reach.look(services), reach.look(services)] == [gone, gone]
    (tmp_path / "dataloader.sock").write_text("")
    assert reach.look(services) == gone, "a file that nobody serves"
    (tmp_path / "dataloader.sock").unlink()
    for _ in range(2):  # the second look, when whoever removed it is done
        servers["dataloader"].keep_reachable()
    assert reach.look(services) == ""


def test_a_service_that_does_not_run_is_not_named_twice(tmp_path: Path) -> None:
    reach, services = Reach(lambda name: _endpoint(tmp_path, name)), Services(5.0, 60.0)
    services.keep("dataloader", 0.0)
    services.keep("ckpt_store", 0.0, ProcessId.current())  # it has not sent a beat yet
    assert [reach.look(services) for _ in range(2)] == ["", ""]
