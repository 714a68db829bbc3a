"""What a node leaves on its machine at the end of its run, and after an end by force."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId
from headway.common.wire.addresses import Network
from headway.launch.join import leaving, records
from headway.launch.join.bundle import Bundle
from headway.launch.join.folder import NodeFolder
from headway.launch.join.ticket import Ticket
from headway.launch.lease.base import Holder
from headway.launch.lease.file import FileLease
from headway.launch.machine import ending
from headway.launch.machine.sweep import sweep

RUN = "0123ab05"
SECRET = "ab" * 32


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    shared = tmp_path / "shared"
    for name in ("control", "checkpoints"):
        (shared / name).mkdir(parents=True)
    me = ProcessId.current()
    FileLease(shared / "control").publish(Holder(1, 0, me.pid, me.start_ticks, is_over=True))
    return Bundle(RUN, "a", 2, "[train]\n", Network(), {}, str(shared), SECRET, "k" * 40)


@pytest.fixture
def node(tmp_path: Path, bundle: Bundle) -> NodeFolder:
    """Node 1, which has written a log."""
    found = NodeFolder(tmp_path / "scratch" / f"{RUN}-n1")
    found.path.mkdir(parents=True)
    found.install(bundle, 1, keys=found.key(), is_first=False)
    (found.path / "runs" / "a" / "logs" / "n1-agent.log").write_text("a line\n")
    return found


def _holds_a_secret(folder: Path) -> bool:
    key = NodeFolder(folder).path / "node.key"
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    return key.exists() or any(SECRET in text or "secret" in text for text in texts)


def test_a_node_leaves_its_records_and_nothing_else(
    tmp_path: Path, node: NodeFolder, bundle: Bundle
) -> None:
    assert leaving.bundle_of(node.path) == bundle and _holds_a_secret(node.path)
    for _ in range(2):  # the second time it has left already
        leaving.leave(node.path, bundle, 1)
        assert not list((tmp_path / "scratch").iterdir())
        assert records.unpack(bundle.records_of(1).read_text(), tmp_path / "here") == 1
    assert (tmp_path / "here" / "logs" / "n1-agent.log").read_text() == "a line\n"
    assert bundle.checkpoints.is_dir() and bundle.control.is_dir(), "what is shared stays"


def test_a_node_of_a_run_that_is_not_over_keeps_its_folder(
    node: NodeFolder, bundle: Bundle
) -> None:
    _lead(bundle)
    leaving.leave(node.path, bundle, 1)
    assert node.has_joined(1, "")


def test_records_that_cannot_be_kept_stay_without_secrets(node: NodeFolder, bundle: Bundle) -> None:
    bundle.records_of(1).parent.write_text("in the way")
    leaving.leave(node.path, bundle, 1)
    assert (node.path / "runs" / "a" / "logs" / "n1-agent.log").exists()
    assert not _holds_a_secret(node.path) and not node.has_joined(1, "")


def test_a_run_that_is_resumed_meanwhile_keeps_its_node(
    node: NodeFolder, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = records.pack

    def resume(run: Path) -> str:
        (bundle.control / "driver.json").unlink()  # as the console does
        return pack(run)

    monkeypatch.setattr(records, "pack", resume)
    leaving.leave(node.path, bundle, 1)
    assert node.has_joined(1, "")


def test_what_was_ended_by_force_keeps_its_logs_and_no_secret(
    tmp_path: Path, node: NodeFolder, bundle: Bundle
) -> None:
    ticket = Ticket(RUN, 1, "token", str(bundle.control), str(tmp_path / "scratch"))
    key = node.key()
    assert ending.end(node, ticket) == 0
    assert (node.path / "runs" / "a" / "logs" / "n1-agent.log").exists()
    assert not _holds_a_secret(node.path) and not node.has_joined(1, "")
    node.install(bundle, 1, keys=node.key(), is_first=False)
    assert node.has_joined(1, "") and node.key() != key, "it joins again as a new one"
    assert node.cluster.key_of("executor") == node.key()


# ---- machines that were down at the end ----------------------------------------------------------
@pytest.mark.usefixtures("node")
def test_what_a_run_has_left_is_removed_later(tmp_path: Path, bundle: Bundle) -> None:
    sweep(tmp_path / "scratch", tmp_path)
    assert not list((tmp_path / "scratch").iterdir())
    assert records.unpack(bundle.records_of(1).read_text(), tmp_path / "here") == 1


def test_of_a_node_that_has_moved_the_records_of_its_last_machine_are_kept(
    tmp_path: Path, node: NodeFolder, bundle: Bundle
) -> None:
    """Whichever is swept first."""
    log = node.path / "runs" / "a" / "logs" / "n1-agent.log"
    before = tmp_path / "before" / node.path.name
    shutil.copytree(node.path, before, symlinks=True)
    (before / "runs" / "a" / "logs" / "n1-agent.log").write_text("an old line\n")
    os.utime(before / "runs" / "a" / "logs" / "n1-agent.log", (1e9, 1e9))
    newer, older = tmp_path / "scratch", tmp_path / "before"
    for order in ((older, newer), (newer, older)):
        for number, folder in enumerate(order):
            shutil.copytree(folder, tmp_path / f"disk{number}", symlinks=True)
            sweep(tmp_path / f"disk{number}", tmp_path)
            assert not list((tmp_path / f"disk{number}").iterdir())
            (tmp_path / f"disk{number}").rmdir()
        records.unpack(bundle.records_of(1).read_text(), tmp_path / "here")
        assert (tmp_path / "here" / "logs" / "n1-agent.log").read_text() == "a line\n"
        bundle.records_of(1).unlink()
    assert log.exists(), "copies were swept"


def _lead(bundle: Bundle) -> None:
    lease = FileLease(bundle.control)
    holder = lease.look().holder
    assert holder is not None
    lease.publish(dataclasses.replace(holder, is_over=False))


def test_what_may_still_be_needed_stays(tmp_path: Path, node: NodeFolder, bundle: Bundle) -> None:
    sweep(tmp_path / "scratch", tmp_path / "another")
    assert node.has_joined(1, ""), "a run whose shared folder may not respond"
    words = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    env = {"HEADWAY_RUN_ID": RUN, "HEADWAY_NODE": "1", "HEADWAY_ROLE": "agent"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=env) as running:
        sweep(tmp_path / "scratch", tmp_path)
        assert node.has_joined(1, ""), "a node that runs"
        assert running.stdin is not None
        running.stdin.close()
    _lead(bundle)
    sweep(tmp_path / "scratch", tmp_path)
    assert node.has_joined(1, ""), "a run that is led"


def test_a_folder_that_cannot_be_read_keeps_no_other_one(tmp_path: Path, node: NodeFolder) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "00000000-n0").mkdir()
    (scratch / "11111111-n0").write_text("a file")
    shutil.copytree(node.path, scratch / "22222222-n0", symlinks=True)
    (scratch / "22222222-n0" / "runs" / "a" / "bundle.json").write_bytes(b"\xff\xfe")
    sweep(scratch, tmp_path)
    assert not node.path.exists()
    assert len(list(scratch.iterdir())) == 3


def test_a_folder_that_is_not_a_nodes_stays_although_it_looks_like_one(
    tmp_path: Path, node: NodeFolder
) -> None:
    for name in ("my-project-n1", f"old-{RUN}-n1", "0123abce-n1"):
        shutil.copytree(node.path, tmp_path / "scratch" / name, symlinks=True)
    sweep(tmp_path / "scratch", tmp_path)
    assert not node.path.exists()
    assert len(list((tmp_path / "scratch").iterdir())) == 3


def test_what_was_removed_in_part_is_removed(tmp_path: Path, node: NodeFolder) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid in (ended.pid, os.getppid()):
        shutil.copytree(node.path, tmp_path / "scratch" / f".{RUN}-n1.{pid}", symlinks=True)
    sweep(tmp_path / "scratch", tmp_path)
    [left] = (tmp_path / "scratch").iterdir()
    assert left.name == f".{RUN}-n1.{os.getppid()}", "it is still being removed"


def test_a_removal_that_fails_half_way_leaves_no_secret(
    tmp_path: Path, node: NodeFolder, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def fail(path: Path, *, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(f"{path} is damaged")
        remove(path, ignore_errors=True)

    monkeypatch.setattr(shutil, "rmtree", fail)
    leaving.leave(node.path, bundle, 1)
    [left] = (tmp_path / "scratch").iterdir()
    assert not _holds_a_secret(left)
