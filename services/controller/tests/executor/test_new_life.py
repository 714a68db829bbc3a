"""A run that is started again: what its earlier life has left in logs and verdicts is not news."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.run_dir import RunDir, new_run_id
from headway.common.node.testing import private_roots
from headway.common.wire.messages.health import Verdict
from headway.controller.executor.node_run import NodeRun
from headway.health.client import verdicts_of
from headway.health.journal import VerdictFile
from headway.health.sources.train_log import CURSOR_FILE, LogTail
from headway.launch.cluster import ClusterFolder

OLD = "RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:28077\n"
NEW = "step 7 loss: nan\n"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunDir]:
    """A run whose ranks lost each other as it was stopped, with the verdict of that."""
    with private_roots():
        made = RunDir.create(tmp_path / "run", run_id=new_run_id())
        made.config.write_text("")
        (made.logs / "n0w0.log").write_text(OLD)
        file = VerdictFile(made.control / "verdicts.jsonl")
        file.append(
            Verdict(
                id="log:gloo_peer:0:0#1", revision=0, kind="peer_lost", is_open=True,
                run_id=made.run_id, node=0, rank=0, generation=1,
            )
        )  # fmt: skip
        file.close()
        yield made


def attach(folder: RunDir, tmp_path: Path, *, is_fresh: bool, node: int = 0) -> NodeRun:
    run = NodeRun(ClusterFolder(tmp_path / "cluster"), node, folder.path, is_fresh=is_fresh)
    run.side_thread.close()
    return run


def found(run: NodeRun, folder: RunDir) -> list[str]:
    """What the first look of the node's agent finds."""
    tail = LogTail(folder.logs, "n0[-w]*.log", run.paths.shm_dir / CURSOR_FILE)
    return [hit.rule for hit in tail.poll(1 << 20)]


def test_a_resume_finds_only_lines_of_its_own_and_opens_no_verdict(
    folder: RunDir, tmp_path: Path
) -> None:
    run = attach(folder, tmp_path, is_fresh=True)
    with (folder.logs / "n0w0.log").open("a") as log:
        log.write(NEW)  # before the agent looks for the first time
    assert found(run, folder) == ["nan_loss"]
    assert verdicts_of(folder.control, only_open=True) == []


def test_an_executor_that_is_restarted_in_a_life_loses_neither(
    folder: RunDir, tmp_path: Path
) -> None:
    attach(folder, tmp_path, is_fresh=True)
    with (folder.logs / "n0w0.log").open("a") as log:
        log.write(NEW)
    file = VerdictFile(folder.control / "verdicts.jsonl")
    file.append(
        Verdict(id="node:1#1", revision=0, kind="node_silent", is_open=True, run_id="r", node=1)
    )
    file.close()
    again = attach(folder, tmp_path, is_fresh=False)
    assert found(again, folder) == ["nan_loss"]
    assert [one.kind for one in verdicts_of(folder.control, only_open=True)] == ["node_silent"]


def test_a_node_that_joins_later_leaves_the_verdicts_open(folder: RunDir, tmp_path: Path) -> None:
    attach(folder, tmp_path, is_fresh=True, node=1)
    assert len(verdicts_of(folder.control, only_open=True)) == 1
