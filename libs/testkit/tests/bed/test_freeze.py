"""A frozen node makes no progress, whatever the kernel has to freeze it with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.testing import wait_until
from headway.testkit.bed import Bed
from headway.testkit.bed.freezer import Hierarchy, hierarchies
from headway.testkit.bed.node import Node

WAYS = [*hierarchies(), None]
COUNT = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
with path.open("w", buffering=1) as file:
    while True:
        file.write(".")
        file.flush()
"""


@pytest.fixture(params=WAYS, ids=lambda way: way.switch if way else "signals", scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Two nodes that freeze in one way."""
    way: Hierarchy | None = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway.testkit.bed.freezer.hierarchies", lambda: [way] if way else [])
        with Bed(tmp_path_factory.mktemp("bed"), nodes=2) as bed:
            yield bed


def counting(node: Node) -> Path:
    """A file that grows for as long as the node makes progress."""
    counted = node.root / "count"
    command = [sys.executable, "-S", "-c", COUNT, str(counted)]
    node.start(["sh", "-c", '"$@" & wait', "sh", *command])
    wait_until(lambda: counted.exists() and counted.stat().st_size > 0, what="the first count")
    return counted


def test_a_frozen_node_makes_no_progress_until_the_thaw(pair: Bed) -> None:
    frozen, running = (counting(node) for node in pair.nodes)
    pair.node(0).freeze()
    reached, others = frozen.stat().st_size, running.stat().st_size
    wait_until(lambda: running.stat().st_size > others + 1000, what="progress of the other node")
    assert frozen.stat().st_size == reached
    with pytest.raises(ValueError, match="node-0 is frozen"):
        pair.node(0).run(["true"])
    pair.node(0).thaw()
    wait_until(lambda: frozen.stat().st_size > reached, what="progress after the thaw")
    assert pair.node(0).run(["echo", "up"]).stdout == "up\n"


def test_a_frozen_node_can_lose_power(pair: Bed) -> None:
    node = pair.node(1)
    counted = counting(node)
    node.freeze()
    reached, everything = counted.stat().st_size, node.processes()
    assert len(everything) >= 2
    node.kill()
    assert not any(one.alive() for one in everything)
    assert counted.stat().st_size == reached, "it ended without another step"
    node.boot()
    assert node.run(["echo", "up"]).stdout == "up\n"
