"""One bed per file, healed between its tests; skipped, with the reason, where none can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from headway.testkit.bed import Bed
from headway.testkit.bed.namespace import Namespace
from headway.testkit.bed.node import Node


@pytest.fixture(scope="module", autouse=True)
def separate_nodes() -> None:
    if reason := Bed.missing():
        pytest.skip(f"no separate nodes here: {reason}")


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Five nodes."""
    shared = tmp_path_factory.mktemp("shared")
    with Bed(tmp_path_factory.mktemp("bed"), nodes=5, shared=[shared]) as bed:
        yield bed


@pytest.fixture
def bed(whole_file: Bed) -> Iterator[Bed]:
    """Five nodes that are up, in a network without faults."""
    yield whole_file
    whole_file.heal()
    for node in whole_file.nodes:
        if not node.is_up:
            node.boot()


@pytest.fixture
def within() -> Iterator[Callable[[Node, Callable[[], Any]], Any]]:
    """``within(node, do)``: ``do()`` in the network of a node; sockets it makes are closed."""
    made: list[Any] = []

    def call(node: Node, do: Callable[[], Any]) -> Any:
        namespace = Namespace.of(node.pid)
        try:
            made.append(namespace.call(do))
        finally:
            namespace.close()
        return made[-1]

    yield call
    for one in made:
        one.close()


@pytest.fixture
def shared(whole_file: Bed) -> Path:
    """The folder that all nodes share."""
    return Path(whole_file._shared[0])
