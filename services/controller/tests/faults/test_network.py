"""A fault of the ranks' network is the only one of its interface, and leaves nothing silently.

``tc`` is played by a script that notes what it is asked for, since the real one would disturb the
machine of the tests, and does not hang on request.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError, InputError
from headway.controller.faults import network
from headway.controller.faults.network import TRIES, check_network, disturbed

ADDRESS = "127.0.0.1"
PLAYED = """#!/bin/sh
while read -r line || [ -n "$line" ]; do
    echo "$line" >> "{folder}/asked"
    case "$line" in *"$(cat {folder}/hangs)"*) exec sleep 60;; esac
done
"""
HOLDER = """
import sys
from headway.controller.faults.network import disturbed
with disturbed("partition", "127.0.0.1"):
    print("held", flush=True)
    sys.stdin.read()
"""


class Tool:
    def __init__(self, folder: Path) -> None:
        self._asked, self._hangs = folder / "asked", folder / "hangs"
        self.hang_on("nothing")
        for name in ("tc", "unshare"):
            (folder / name).write_text(PLAYED.format(folder=folder))
            (folder / name).chmod(0o755)

    def hang_on(self, words: str) -> None:
        """It does not answer to a command with these words."""
        self._hangs.write_text(words)

    @property
    def asked(self) -> list[str]:
        return self._asked.read_text().splitlines() if self._asked.exists() else []


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(network, "TOOL_LIMIT_S", 1.0)
    return Tool(tmp_path)


def test_a_filter_that_cannot_be_removed_is_tried_again_then_named(tool: Tool) -> None:
    what = "filter del dev lo egress prio 4877"
    with pytest.raises(HeadwayError, match="may still be disturbed") as found:  # noqa: SIM117
        with disturbed("partition", ADDRESS):
            tool.hang_on(what)
    assert found.value.remedy == f"as root, run tc {what}"
    assert tool.asked.count(what) == 1 + TRIES, "once before the fault, then until it gave up"
    assert tool.asked[-2:] == [
        "qdisc del dev lo root handle 4877:",
        "qdisc del dev lo clsact",
    ], "the rest is removed all the same"


def test_a_tool_that_answers_late_once_leaves_nothing(tool: Tool, tmp_path: Path) -> None:
    slow = f"[ -e {tmp_path}/late ] || {{ touch {tmp_path}/late; exec sleep 60; }}\n"
    with disturbed("partition", ADDRESS):
        (tmp_path / "tc").write_text(f"#!/bin/sh\n{slow}(cat; echo) >> {tmp_path}/asked\n")
    assert (tmp_path / "late").exists()
    assert [line for line in tool.asked if line.startswith("filter del")][-2:] == [
        "filter del dev lo egress prio 4877",
        "filter del dev lo ingress prio 4877",
    ]


def test_nothing_is_disturbed_while_what_was_left_cannot_be_removed(tool: Tool) -> None:
    tool.hang_on("qdisc del dev lo root")
    with pytest.raises(HeadwayError, match="may still be disturbed"):  # noqa: SIM117
        with disturbed("partition", ADDRESS):
            pytest.fail("the fault was made")
    assert not any("add" in line for line in tool.asked)


def test_a_second_fault_is_refused_and_leaves_the_first_as_it_is(tool: Tool) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        asked = len(tool.asked)
        for attempt in (lambda: check_network("delay", ADDRESS), _disturb):
            with pytest.raises(InputError, match="disturbed by another fault already") as found:
                attempt()
            assert f"process {holder.pid}" in found.value.remedy
        assert len(tool.asked) == asked, "nothing of the first one was touched"
    finally:
        holder.communicate()
    assert holder.returncode == 0
    _disturb()


def _disturb() -> None:
    with disturbed("loss", ADDRESS):
        pass


def test_one_that_was_killed_does_not_keep_the_next_one_away(tool: Tool) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    holder.kill()
    holder.communicate()
    before = len(tool.asked)
    _disturb()
    assert tool.asked[before] == "filter del dev lo egress prio 4877", "what it left goes first"
