"""While the API server that keeps the lease is away: who leads keeps leading, and nobody claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from headway.common.errors import HeadwayError
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import RunDir, new_run_id
from headway.common.node.testing import private_roots, wait_until
from headway.common.wire.messages.executor import DriverBeat
from headway.common.wire.side_thread import ThreadPerKind
from headway.controller.driver import leadership
from headway.controller.driver.leadership import Leadership
from headway.controller.executor.machine.folder_probe import FolderLook
from headway.controller.executor.node_events import DriverReported
from headway.controller.executor.node_run import NodeRun
from headway.launch.cluster import ClusterFolder
from headway.launch.lease import kubernetes_api as api_module
from headway.launch.lease.base import Holder, SupersededError
from headway.launch.lease.choose import lease_of
from headway.launch.lease.kubernetes import LeaseName
from headway.testkit.played.kubernetes_api import KubernetesApi

ME = ProcessId.current()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    (tmp_path / "api").mkdir()
    with KubernetesApi(tmp_path / "api") as found:
        found.add("tiny")
        yield found


@pytest.fixture
def run(tmp_path: Path, api: KubernetesApi) -> RunDir:
    made = RunDir.create(tmp_path / "run", run_id=new_run_id())
    made.config.write_text("[recovery]\ndriver_silent_s = 0.75\n[launch]\nstandbys = 0\n")
    LeaseName(api.url, "train", "tiny", str(api.account)).save(made.control)
    return made


def _holder(epoch: int = 1, beat: int = 1) -> Holder:
    return Holder(epoch, 0, ME.pid, ME.start_ticks, "tcp://127.0.0.1:9", "k", beat)


class Lead:
    """A driver's leadership, and what it has logged."""

    def __init__(self, run: RunDir, patch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        self.is_stopped = False
        self._background = ThreadPerKind()
        for level in ("info", "warning", "error"):
            patch.setattr(leadership.log, level, self._note)
        engine: Any = None
        self.it = Leadership(run.control, 0, 1, engine, self._background)
        self.it.stop = self._stop
        self.it.begin(_holder())

    def _note(self, event: str, **fields: object) -> None:
        self.lines.append(f"{event} {fields}")

    def _stop(self) -> None:
        self.is_stopped = True

    def turn(self) -> bool:
        """Of the driver's loop."""
        self._background.run_callbacks()
        self.it.renew()
        return True


def _asked(api: KubernetesApi, more: int) -> int:
    return len(api.requests) + more


@pytest.mark.parametrize("fault", ["500", "403", "hang"])
def test_a_driver_keeps_leading_and_logs_an_outage_once(
    run: RunDir, api: KubernetesApi, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "LIMIT_S", 0.2)
    monkeypatch.setattr(leadership, "LATE_S", 0.5)
    lead, lease = Lead(run, monkeypatch), lease_of(run.control)
    wait_until(lambda: lead.turn() and len(api.requests) > 3, what="renewals")
    assert not lead.lines, "an attempt that has not ended yet is nothing to speak of"
    api.fault = fault
    wait_until(lambda: lead.turn() and bool(lead.lines), what="a line")
    wanted = _asked(api, 6)
    wait_until(lambda: lead.turn() and len(api.requests) >= wanted, what="failed renewals")
    assert len(lead.lines) == 1 and "cannot be renewed" in lead.lines[0], lead.lines
    assert not lead.is_stopped
    api.fault = ""
    wait_until(
        lambda: lead.turn() and "the lease is renewed again {}" in lead.lines, what="the end of it"
    )
    wait_until(lambda: lease.claim(1) == 2, what="a claim that no renewal comes between")
    wait_until(lambda: lead.turn() and lead.is_stopped, what="another driver")
    with pytest.raises(SupersededError):
        lease.publish(_holder())


def test_a_lease_that_cannot_be_read_is_not_a_folder_that_is_gone(
    run: RunDir, api: KubernetesApi
) -> None:
    look = FolderLook(run.path, run.config, lease_of(run.control))
    api.fault = "500"
    seen = look()
    assert (seen.state, seen.lease) == ("there", None) and "answers with 500" in seen.detail
    api.fault = ""
    assert look().lease is not None


@pytest.fixture
def node(tmp_path: Path, run: RunDir) -> Iterator[NodeRun]:
    with private_roots():
        made = NodeRun(ClusterFolder(tmp_path / "cluster"), 1, run.path)

        def refuse(*_: object) -> ProcessId:
            raise HeadwayError("nothing is started here")

        made.services.start = refuse  # type: ignore[method-assign]
        yield made
        made.guardian.is_ending = True
        made.side_thread.close()


def _turn(node: NodeRun, *, epoch: int = 0) -> bool:
    """Of an executor's loop; with ``epoch``, its driver reports."""
    node.side_thread.run_callbacks()
    node.look()
    node.look_at_folder()
    if epoch:
        beat = DriverBeat(run_id=node.run.run_id, epoch=epoch, refill=False, active=True)
        node.handle(DriverReported(beat))
    return True


def test_nobody_claims_a_lease_that_cannot_be_read(
    run: RunDir, api: KubernetesApi, node: NodeRun
) -> None:
    lease = lease_of(run.control)
    assert lease.claim(0) == 1
    lease.publish(_holder())
    leading, guardian = node.guardian.leading, node.guardian
    wait_until(lambda: _turn(node) and leading.view is not None, what="a look")
    api.fault, wanted = "500", _asked(api, 40)
    wait_until(lambda: _turn(node) and len(api.requests) >= wanted, what="looks that fail")
    assert "the driver's lease cannot be read: the API server" in guardian.trouble()
    assert "folder" not in guardian.trouble() and not guardian.is_ending
    assert not [one for one in api.requests[-40:] if one.startswith("PUT")]
    assert not leading.epoch

    api.fault = ""
    wait_until(lambda: _turn(node) and leading.epoch == 2, what="the end of the outage")
    assert "cannot be read" not in guardian.trouble()


def test_the_server_is_asked_seldom_while_the_driver_reports(run: RunDir, node: NodeRun) -> None:
    lease = lease_of(run.control)
    assert lease.claim(0) == 1
    wait_until(lambda: _turn(node, epoch=1) and node.guardian.leading.view is not None, what="look")
    beats = iter(range(1, 1_000_000))

    def renewed() -> bool:
        lease.publish(_holder(beat=next(beats)))
        return _turn(node, epoch=1)

    assert lease.calm_look_s >= 10 * lease.look_s > 0
    wait_until(lambda: renewed() and node.poll_interval_s() == lease.calm_look_s, what="calm")
    wait_until(
        lambda: _turn(node, epoch=1) and node.poll_interval_s() == lease.look_s,
        what="a lease that is not renewed",
    )
    wait_until(lambda: renewed() and node.poll_interval_s() == lease.calm_look_s, what="calm again")
    wait_until(
        lambda: _turn(node) and node.poll_interval_s() == lease.look_s, what="a silent driver"
    )
