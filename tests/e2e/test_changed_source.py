"""The source changes under a live run, as by ``git pull``: no rank computes with the new one."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import headway.trainer
import pytest
from headway.common.node.process import ProcessId

NAME = "changed"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_of_changed_source_gets_no_rank_until_the_old_one_is_back(machine: Any) -> None:
    """The run imports a copy of this package, which lies in front of the installed one."""
    copy = machine.folder / "src" / "headway" / "trainer"
    shutil.copytree(Path(headway.trainer.__file__).parent, copy)
    machine.env["PYTHONPATH"] = str(copy.parents[1])
    replicas = ("parallel.pp=1", "parallel.dp=2", "launch.spares=0", "launch.standbys=0")
    machine.launch(NAME, machine.two_nodes, replicas)
    before = machine.stepping(NAME, 3)

    module = copy / "worker" / "worker.py"
    old = module.read_text()
    module.write_text(old + "\n# another version\n")
    _replace_zygote(machine)
    victim = ProcessId.of(before["ranks"][1]["pid"])
    assert victim is not None and victim.kill(signal.SIGKILL)
    (found,) = machine.wait_until(lambda: machine.events(NAME, "code_differs"), "it is named")
    assert found["node"] == 1 and found["source"] != found["wanted"]
    machine.wait_until(
        lambda: found["reason"] in machine.status(NAME).get("waiting", ""), "its advice"
    )
    assert len(machine.events(NAME, "generation")) == 1

    module.write_text(old)
    _replace_zygote(machine)
    machine.wait_until(lambda: machine.status(NAME).get("generation") == 1, "a recovery")
    machine.wait_until(lambda: machine.status(NAME).get("step", 0) > before["step"], "more steps")
    after = machine.wait_until(lambda: machine.status(NAME), "the driver answers")
    assert after["ranks"][0]["pid"] == before["ranks"][0]["pid"]
    machine.headway("stop", NAME, "--runs-dir", machine.runs)
    machine.assert_clean(NAME)


def _replace_zygote(machine: Any) -> None:
    """Its successor on node 1 imports what is there now."""

    def zygote() -> int:
        return int(machine.status(NAME).get("services", {}).get("1", {}).get("zygote", 0))

    old = machine.wait_until(zygote, "the zygote")
    victim = ProcessId.of(old)
    assert victim is None or victim.kill(signal.SIGKILL)
    machine.wait_until(lambda: zygote() not in (0, old), "a new zygote")
