"""Every change of a shared file is known, with the machine and the program that made it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError
from headway.common.node.testing import wait_until
from headway.testkit.bed import Bed
from headway.testkit.bed.writes import Writes


def test_new_written_moved_and_removed_files_are_told_by_machine(bed: Bed, shared: Path) -> None:
    first, second = bed.node(0), bed.node(1)
    with Writes(shared) as writes:
        folder = shared / "a folder"
        words = "mkdir '{0}'; echo 1 > '{0}/new'; mv '{0}/new' '{0}/moved'; rm -r '{0}'; sleep 1"
        first.run(["sh", "-c", words.format(folder)])
        second.run(["sh", "-c", f"echo 1 > {shared}/second; echo 1 > $HOME/own; cat {shared}/*"])

        def of_first() -> set[str]:
            return {one.path for one in writes.of(first) if one.machine}

        expected = {str(folder), f"{folder}/new", f"{folder}/moved"}
        wait_until(lambda: of_first() >= expected, what="the files of the first machine")
        assert of_first() == expected
        assert {one.path for one in writes.of(second) if one.machine} == {f"{shared}/second"}
        assert any("echo 1 >" in one.command for one in writes.of(second))


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
