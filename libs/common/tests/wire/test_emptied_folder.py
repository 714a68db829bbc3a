"""A socket folder that somebody has emptied: services and locks are found in it again."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator

import pytest
from headway.common.node.run_dir import NodePaths, RunLock, new_run_id, sock_root
from headway.common.node.testing import private_roots
from headway.common.polling import wait_until
from headway.common.wire import service as service_module
from headway.common.wire.client import Client
from headway.common.wire.messages.service import Ping, Pong
from headway.common.wire.server import Server
from headway.common.wire.service import Service

LIMIT_S = 30.0


@pytest.fixture
def paths() -> Iterator[NodePaths]:
    with private_roots():
        yield NodePaths(new_run_id(), 0).create()


def test_a_service_is_reachable_again_and_keeps_the_connections_it_has(
    paths: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "SOCKET_LOOK_S", 0.05)
    endpoint, path = paths.endpoint("ckpt_store"), paths.socket("ckpt_store")
    service = Service("ckpt_store", Server(endpoint, {}))
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        with Client(endpoint) as old:
            assert old.call(Ping(), Pong, timeout_s=LIMIT_S)
            for _ in range(2):
                shutil.rmtree(sock_root())
                assert wait_until(path.exists, LIMIT_S)
                with Client(endpoint) as new:
                    assert new.call(Ping(), Pong, timeout_s=LIMIT_S)
                assert old.call(Ping(), Pong, timeout_s=LIMIT_S, retries=0)
    finally:
        service.stop()
        thread.join()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert sock_root().stat().st_mode & 0o777 == 0o700
    assert not path.exists()


def test_a_socket_of_a_successor_is_left_alone(paths: NodePaths) -> None:
    with Server(paths.endpoint("agent"), {}) as server:
        path = paths.socket("agent")
        path.unlink()
        path.touch()
        number = path.stat().st_ino
        for _ in range(2):
            server.keep_reachable()
        assert path.stat().st_ino == number


def test_a_folder_that_cannot_be_made_is_tried_again(paths: NodePaths) -> None:
    with Server(paths.endpoint("agent"), {}) as server:
        shutil.rmtree(paths.sock_dir)
        paths.sock_dir.write_text("in the way")
        for _ in range(2):
            server.keep_reachable()
        paths.sock_dir.unlink()
        server.keep_reachable()
        assert paths.socket("agent").exists()


def test_a_lock_that_was_removed_still_tells_the_janitor_that_the_run_is_live(
    paths: NodePaths,
) -> None:
    with RunLock.hold(paths.run_id) as lock:
        shutil.rmtree(sock_root())
        lock.renew()
        assert os.path.samestat(lock.path.stat(), RunLock.path_of(paths.run_id).stat())
        assert RunLock.try_exclusive(paths.run_id, sock_root()) is None
        lock.renew()
    assert RunLock.try_exclusive(paths.run_id, sock_root()) is not None
