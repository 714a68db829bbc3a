"""The pictures of a diagnosis of 12,288 ranks: one file, opened in Chromium without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from headway.common.plan.grid import Grid
from headway.console.analysis.rank_times import RankTimes
from headway.console.pictures.page import Page
from headway.console.pictures.ranks import grid_3d, heat_map
from headway.console.pictures.steps import group_timeline
from headway.console.pictures.waiting import culprits, wait_graph
from headway.health.client import Holdup, WaitGraph
from headway.testkit.browser import Watch, missing, open_browser

pytestmark = pytest.mark.timeout(600)
GRID = Grid(tp=8, pp=12, dp=128)
SLOW = (5, 7001, 12_000)
STUCK = GRID.rank(pp=6)
MAX_BYTES = 2_000_000
NUM_STEPS, NUM_ACTIONS = 64, 400
FRAMES = """() => {
  const kept = window.frames_ = { deltas: [], isOn: true };
  let last = 0;
  const frame = (now) => {
    if (last) kept.deltas.push(now - last);
    last = now;
    if (kept.isOn) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""


def slow_ranks() -> RankTimes:
    """Passes of all ranks, of which a few take half as long again."""
    seconds = 1 + 0.02 * np.random.default_rng(0).standard_normal((NUM_STEPS, GRID.world_size))
    seconds[:, SLOW] *= 1.5
    return RankTimes("forward and backward", GRID, tuple(range(NUM_STEPS)), seconds)


def hung() -> WaitGraph:
    """``STUCK`` holds up its tp group, that the dp groups of its stage, and these all stages."""
    names: list[str] = []
    waits: list[tuple[int, int]] = []
    absent: list[tuple[int, int]] = []

    def add(name: str, ranks: list[int], missing: int) -> None:
        absent.append((len(names), missing))
        waits.extend((rank, len(names)) for rank in ranks if rank != missing)
        names.append(name)

    stage = GRID.coordinates(STUCK).pp
    add("all_gather 9 of tp group", list(GRID.group("tp", STUCK)), STUCK)
    for tp in range(GRID.tp):
        members = GRID.group("dp", GRID.rank(tp=tp, pp=stage))
        add(f"reduce_scatter 4 of dp group of rank {members[0]}", list(members), members[0])
    for rank in range(GRID.world_size):
        place = GRID.coordinates(rank)
        if place.pp != stage:
            other = GRID.rank(tp=place.tp, dp=place.dp, pp=stage)
            add(f"message 31 of forward messages of rank {other}", [rank], other)
    holdup = Holdup("missing", (STUCK,), "tp group", 9, GRID.tp - 1)
    return WaitGraph(tuple(names), tuple(waits), tuple(absent), (holdup,), GRID.world_size)


def actions() -> pl.DataFrame:
    """One step of a dp group: passes and reductions, for which all wait for its third rank."""
    members = GRID.group("dp", STUCK)
    rows = []
    for rank, number in product(members, range(NUM_ACTIONS)):
        is_wait = number % 4 == 3
        begin, last = number * 1_000_000, (number - 1) * 1_000_000 + 700_000
        rows.append({
            "rank": rank, "generation": 0, "step": 41, "chunk": 0, "micro_batch": number // 4,
            "action": "REDUCE_SCATTER" if number % 4 >= 2 else "FORWARD", "waiting": is_wait,
            "start_ns": begin, "end_ns": begin + 900_000, "late_ns": 600_000 if is_wait else 0,
            "ready_ns": last if is_wait else None, "ready_rank": members[2] if is_wait else None,
        })  # fmt: skip
    return pl.DataFrame(rows)


@dataclass(frozen=True)
class Opened:
    """The page in the browser, and its file."""

    page: Any
    watch: Watch
    file: Path

    def figure(self, kind: str) -> Any:
        return self.page.locator(f"figure[data-kind={kind}]")

    def get(self, kind: str, name: str) -> int:
        """A figure that a picture publishes, once it has been drawn."""
        value = self.figure(kind).get_attribute(f"data-{name}")
        assert value is not None, f"{kind} does not publish {name}"
        return int(float(value))

    def wait_selected(self, rank: int) -> None:
        self.page.wait_for_selector(f".headway-pictures[data-selected='{rank}']")

    def wait_words(self, kind: str, words: str) -> None:
        """Wait until a picture says this; it is drawn in a frame after the selection."""
        self.figure(kind).locator(".words", has_text=words).wait_for()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("pictures")
    times, graph = slow_ranks(), hung()
    marks = culprits(graph) | dict.fromkeys(times.outliers, "slower than its peers")
    file = Page(
        "run <large>",
        [
            wait_graph(graph),
            grid_3d(GRID, marks, times),
            heat_map(times),
            group_timeline(actions(), GRID, "dp", STUCK),
        ],
        [f"rank {STUCK} never began all_gather 9 of tp group"],
    ).write(folder / "pictures.html")
    watch = Watch()
    with open_browser(folder / "chrome") as page:
        watch.follow(page)
        page.goto(file.as_uri())
        page.wait_for_selector(".headway-pictures[data-pictures='4']", timeout=300_000)
        yield Opened(page, watch, file)


def test_the_file_is_small_and_all_ranks_are_drawn(opened: Opened) -> None:
    size = opened.file.stat().st_size
    print(f"\n{GRID.world_size:,} ranks: {size:,} bytes")
    assert size <= MAX_BYTES
    for kind in ("heat", "grid", "graph"):
        assert opened.get(kind, "drawn") == GRID.world_size
    assert opened.get("steps", "bars") == GRID.dp * NUM_ACTIONS
    assert opened.page.locator("h1").inner_text() == "run <large>"


def test_slow_and_stuck_ranks_are_marked(opened: Opened) -> None:
    assert opened.get("heat", "marked") == len(SLOW)
    assert opened.get("grid", "marked") == len(SLOW) + 1
    assert opened.get("graph", "marked") == 1
    buttons = opened.figure("heat").locator("button", has_text="rank ").all_inner_texts()
    assert sorted(buttons) == sorted(f"rank {rank}" for rank in SLOW)
    # what the reader sees of it: pixels in the colour of marks, around each outlier's cell
    assert marked_pixels(opened, "heat") > 3 * len(SLOW)


def marked_pixels(opened: Opened, kind: str) -> int:
    """Pixels of the colour that marks have, exactly."""
    script = """(figure) => {
      const canvas = figure.querySelector("canvas"), pen = canvas.getContext("2d");
      const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
      let num = 0;
      for (let k = 0; k < data.length; k += 4) {
        if (data[k] === 201 && data[k + 1] === 48 && data[k + 2] === 44) num += 1;
      }
      return num;
    }"""
    return int(opened.figure(kind).evaluate(script))


def test_a_rank_selected_in_one_picture_is_explained_in_the_others(opened: Opened) -> None:
    opened.figure("heat").locator("button", has_text="rank 7001").click()
    opened.wait_selected(7001)
    place = "pp 6 dp 107 tp 1"
    for kind in ("heat", "grid"):
        opened.wait_words(kind, f"rank 7001 ({place})")
    opened.wait_words("graph", "rank 7001")
    way = opened.figure("graph").locator(".words").inner_text()
    assert [part.strip() for part in way.split("→")] == [
        "rank 7001", "waits in reduce_scatter 4 of dp group of rank 6145", "for rank 6145",
        "waits in all_gather 9 of tp group", f"for rank {STUCK}",
        "never entered all_gather 9 of tp group",
    ]  # fmt: skip
    opened.figure("grid").locator("canvas").focus()
    opened.page.keyboard.press("ArrowRight")
    opened.wait_selected(7002)


def test_arrows_lead_from_a_wait_to_who_was_waited_for(opened: Opened) -> None:
    assert opened.get("steps", "arrows") == 1
    words = opened.figure("steps").locator(".words").inner_text()
    assert f"waited for rank {GRID.group('dp', STUCK)[2]}" in words


def test_the_heat_map_shows_outliers_over_steps_too(opened: Opened) -> None:
    figure = opened.figure("heat")
    figure.locator("button", has_text="over steps").click()
    opened.page.wait_for_selector("figure[data-view=steps]")
    assert marked_pixels(opened, "heat") > 3 * len(SLOW)
    figure.locator("button", has_text="as the grid").click()
    opened.page.wait_for_selector("figure[data-view=grid]")


def test_frames_are_counted_while_everything_is_moved(opened: Opened) -> None:
    found = {kind: _frames_while_moved(opened, kind) for kind in ("grid", "graph", "heat", "steps")}
    print(f"\nframes of {GRID.world_size:,} ranks: {json.dumps(found)}")
    assert all(row["frames"] > 10 for row in found.values())


def _frames_while_moved(opened: Opened, kind: str) -> dict[str, float]:
    """Intervals between frames while a picture is dragged and zoomed, and what its draws cost."""
    page, canvas = opened.page, opened.figure(kind).locator("canvas")
    canvas.evaluate("(node) => node.scrollIntoView({ block: 'center' })")
    box, draws = canvas.bounding_box(), []
    page.evaluate(FRAMES)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(30):
        page.mouse.move(x + 6 * step, y + 2 * step)
        page.wait_for_timeout(16)
        draws.append(float(opened.figure(kind).get_attribute("data-draw-ms")))
    page.mouse.up()
    for _ in range(5):
        page.mouse.wheel(0, -60)
        page.wait_for_timeout(16)
    kept = page.evaluate("() => { window.frames_.isOn = false; return window.frames_.deltas; }")
    deltas, draws = sorted(kept), sorted(draws)
    return {
        "frames": len(deltas),
        "p95_ms": round(deltas[int(0.95 * len(deltas))], 1),
        "p95_draw_ms": round(draws[int(0.95 * len(draws))], 1),
    }


def test_nothing_was_requested_and_no_error_was_logged(opened: Opened) -> None:
    assert opened.watch.requests == [opened.file.as_uri()]
    assert opened.watch.errors == []
