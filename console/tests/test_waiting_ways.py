"""The way of each waiting rank to what holds it up, and the picture of it."""

from __future__ import annotations

import base64
import gzip
import json

import numpy as np
from headway.console.analysis.waiting import ways
from headway.console.pictures.page import Page
from headway.console.pictures.waiting import culprits, wait_graph
from headway.health.client import Holdup, WaitGraph

CHAIN = WaitGraph(
    operations=("send 1 to 0", "send 2 to 1", "all_reduce 7"),
    waits=((0, 0), (1, 1), (3, 2), (4, 2)),
    missing=((0, 1), (1, 2)),
    holdups=(
        Holdup("missing", (2,), "messages", 1, 1),
        Holdup("transport", (3, 4), "all", 7, 2),
    ),
    num_ranks=6,
)


def test_a_way_leads_over_ranks_that_wait_themselves_to_a_culprit() -> None:
    found = ways(CHAIN)
    assert found.ranks.tolist() == [0, 1, 2, 3, 4]
    assert found.rank_depth.tolist() == [2, 1, 0, 1, 1]
    assert found.rank_waits_in.tolist() == [0, 1, -1, 2, 2]
    assert found.operation_waits_for.tolist() == [1, 2, -1], "the last is stuck in itself"


def test_ranks_of_a_deadlock_are_ends_themselves() -> None:
    circle = WaitGraph(
        ("a", "b"), ((0, 0), (1, 1)), ((0, 1), (1, 0)),
        (Holdup("deadlock", (0, 1), "x", 1, 1),), 2,
    )  # fmt: skip
    assert ways(circle).rank_depth.tolist() == [0, 0]
    assert culprits(circle) == {
        0: "in a circle of waits, at b",
        1: "in a circle of waits, at a",
    }


def test_the_page_carries_the_whole_graph() -> None:
    picture = wait_graph(CHAIN)
    assert picture.title == (
        "Who waits for whom: 1 culprit, 1 operation stuck in itself, 4 ranks waiting"
    )
    html = Page("a <b>", [picture], ["rank 2 & others"]).html()
    assert "<title>a &lt;b&gt;</title>" in html and "rank 2 &amp; others" in html
    packed = html.partition('id="data">')[2].partition("<")[0]
    (read,) = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert read["data"]["others"] == 1 and read["data"]["operations"][2] == "all_reduce 7"
    ranks = read["data"]["marked"]
    assert np.frombuffer(base64.b64decode(ranks["base64"]), ranks["type"]).tolist() == [2]
