"""Every change of a shared file is known, with the machine and the program that made it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError
from headway.common.node.testing import wait_until
from headway.testkit.bed import Bed
from headway.testkit.bed.node import Node
from headway.testkit.bed.writes import Writes

CHANGES = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
(folder / "new").write_text("1")
(folder / "new").rename(folder / "moved")
(folder / "moved").unlink()
time.sleep(1)  # neither a folder that is gone nor a process that has ended can be looked up
folder.rmdir()
"""


def test_new_written_moved_and_removed_files_are_told_by_machine(bed: Bed, shared: Path) -> None:
    first, second = bed.node(0), bed.node(1)

    def of(node: Node) -> set[str]:
        return {one.path for one in writes.of(node) if one.machine}

    with Writes(shared) as writes:
        folder = shared / "a folder"
        first.run([sys.executable, "-c", CHANGES, folder])
        own = f"echo 1 > {shared}/second; echo 1 > $HOME/own; cat {shared}/*; sleep 1"
        second.run(["sh", "-c", own])
        wait_until(lambda: of(second), what="the file of the second machine")
        assert of(first) == {str(folder), f"{folder}/new", f"{folder}/moved"}
        assert of(second) == {f"{shared}/second"}
        assert any("echo 1 >" in one.command for one in writes.of(second))


def test_what_a_machine_wrote_before_it_lost_power_stays_its_own(bed: Bed, shared: Path) -> None:
    node = bed.node(1)
    with Writes(shared) as writes:
        for name in ("before", "after"):
            node.run(["sh", "-c", f"echo 1 > {shared}/{name}; sleep 0.5"])
            node.kill()
            node.boot()
        wait_until(lambda: len(writes.of(node)) > 1, what="both files")
        found = {one.path for one in writes.of(node) if one.machine}
        assert found == {f"{shared}/before", f"{shared}/after"}
        assert not [one for one in writes.of(bed.node(0)) if one.machine]


def test_the_host_is_another_machine(bed: Bed, shared: Path) -> None:
    with Writes(shared) as writes:
        (shared / "of the host").write_text("1")
        bed.node(2).run(["touch", shared / "of the node"])
        wait_until(lambda: writes.of(bed.node(2)), what="the node's file")
        assert str(shared / "of the host") not in {one.path for one in writes.of(bed.node(2))}


def test_a_folder_that_is_not_there_is_refused_and_leaves_nothing_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(HeadwayError, match="No such file"):
        Writes(tmp_path / "absent")
    assert len(os.listdir("/proc/self/fd")) == len(before)
