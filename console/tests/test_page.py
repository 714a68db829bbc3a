"""The page's JavaScript: it parses, loads nothing from elsewhere, and keeps what it was sent."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from headway.common.plan.schedule.actions import Kind
from headway.console.trace.slices import STATE
from headway.console.widgets.packing import BAR, HIDDEN, NO_MICRO_BATCH, WAITS
from headway.console.widgets.views import PAGE, SCRIPTS, module

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no node to run the page's code with")
MAX_LINES = 400


def bar(start_us: int, rank: int = 0, kind: int = 1, span_us: int = 500) -> bytes:
    return struct.pack("<IIHBB", start_us, span_us, rank, 3, kind)


def run_page(tmp_path: Path, script: str, **values: object) -> object:
    """What ``script`` returns, run after the page's code; bytes arrive as a DataView."""
    shown = {
        name: {"bytes": list(value)} if isinstance(value, bytes) else value
        for name, value in values.items()
    }
    code = module().replace("export default { initialize, render };", "")
    file = tmp_path / "page.mjs"
    file.write_text(
        f"{code}\nconst given = {json.dumps(shown)};\n"
        "for (const [name, value] of Object.entries(given)) if (value?.bytes) "
        "given[name] = new DataView(Uint8Array.from(value.bytes).buffer);\n"
        f"const result = (() => {{ {script} }})();\nconsole.log(JSON.stringify(result));"
    )
    done = subprocess.run([str(NODE), str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


STARTS = """
  const starts = (store) => [...store.lanes.values()].flatMap(
    (lane) => Array.from(lane.start.subarray(0, lane.count))).sort((one, other) => one - other);
"""


def points(*steps: int) -> bytes:
    return b"".join(struct.pack("<6f", step, 2.0, 100.0, 1.0, 0.5, 0.6) for step in steps)


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = module() + (PAGE / "console.css").read_text()
    assert "http" not in text and "import " not in text and "url(" not in text
    assert {path.stem for path in PAGE.glob("*.js")} == set(SCRIPTS)
    for path in PAGE.iterdir():
        assert len(path.read_text().splitlines()) <= MAX_LINES, path


@needs_node
def test_the_page_is_a_module_that_parses(tmp_path: Path) -> None:
    file = tmp_path / "console.mjs"
    file.write_text(module())
    assert subprocess.run([str(NODE), "--check", str(file)], check=False).returncode == 0


@needs_node
def test_the_page_and_the_kernel_agree_on_the_bytes_of_a_bar(tmp_path: Path) -> None:
    script = "return [BAR_BYTES, NO_MICRO_BATCH, WAITS, POINT.columns]"
    from headway.console.analysis.curve import COLUMNS

    expected = [BAR.itemsize, NO_MICRO_BATCH, WAITS, len(COLUMNS)]
    assert run_page(tmp_path, script) == expected
    script = """
      const store = new Store(), lane = (store.append(7, given.bars), store.lane(5, true));
      return [store.numBars, store.numRanks, lane.count, lane.start[0], lane.end[0],
        lane.microBatch[0], lane.kind[0], store.newest]
    """
    raw = bar(0) + bar(2_000_000, rank=5, kind=1 + WAITS)
    assert run_page(tmp_path, script, bars=raw) == [2, 6, 1, 9, 9.0005, 3, 1 + WAITS, 9.0005]


@needs_node
def test_bars_of_a_lane_are_sorted_and_a_window_is_found_by_halving(tmp_path: Path) -> None:
    script = """
      const store = new Store(new Set([9]));
      for (const bars of [given.one, given.two, given.three]) store.append(100, bars);
      const lane = store.lane(0, false), behind = store.lane(0, true), seen = [];
      seen.push(Array.from(lane.start.subarray(0, lane.count), (at) => Math.round(at * 10 - 1000)));
      for (const at of [0, 100.35, 100.65, 107.6, 108.5]) seen.push(lane.first(at));
      seen.push(behind.count, store.find(0, 106.0005).kind, store.find(0, 104.4)?.kind ?? null);
      return seen
    """
    one = bar(0) + bar(300_000, span_us=100_000) + bar(8_000_000)
    two = bar(6_000_000) + bar(500_000, span_us=7_000_000, kind=2)  # ends after those behind it
    three = bar(4_000_000, kind=9, span_us=100_000) + bar(600_000)
    found = run_page(tmp_path, script, one=one, two=two, three=three)
    assert found == [[0, 3, 5, 6, 60, 80], 0, 1, 2, 5, 6, 1, 1, 2]


@needs_node
def test_what_is_new_is_appended_and_a_gap_is_noticed(tmp_path: Path) -> None:
    script = """
      const store = new Store(), steps = () => Array.from({ length: store.numPoints },
        (_, row) => store.point(row, POINT.step));
      const seen = [];
      store.replace({ number: 3, points: given.all, base_s: 10, bars: given.bars });
      seen.push(steps(), store.numBars);
      seen.push(store.apply(
        { number: 3, kept: 0, points: given.all, base_s: 10, bars: given.bars }));
      seen.push(store.apply(
        { number: 4, kept: 1, points: given.more, base_s: 20, bars: given.bars }));
      seen.push(steps(), store.numBars, store.apply({ number: 6, kept: 0 }), store.number);
      store.replace({ number: 6, points: given.all, base_s: 15, bars: given.bars });
      seen.push(steps(), store.numBars);
      return seen
    """
    found = run_page(tmp_path, script, all=points(0, 1), more=points(4, 5), bars=bar(0))
    assert found == [
        [0, 1], 1,
        True,  # seen before: nothing happens
        True, [0, 4, 5], 2,  # step 1 was taken back
        False, 4,  # number 5 is missing
        [0, 1], 2,  # what was before the kernel's window stays
    ]  # fmt: skip


@needs_node
def test_a_chosen_stretch_takes_the_place_of_the_few_bars_that_were_sent(tmp_path: Path) -> None:
    script = f"""
      {STARTS}
      const store = new Store();
      store.append(10, given.few);
      store.fill({{ from_s: 11, to_s: 13, since_s: 0, base_s: 11 }}, given.detail);
      return starts(store)
    """
    few = bar(0) + bar(500_000, span_us=900_000) + bar(1_500_000) + bar(4_000_000)
    found = run_page(tmp_path, script, few=few, detail=bar(500_000) + bar(510_000))
    assert found == [10, 10.5, 11.5, 11.51, 14], "one that reaches into it stays"


@needs_node
def test_a_long_watched_run_drops_its_oldest_bars(tmp_path: Path) -> None:
    script = f"""
      {STARTS}
      const store = new Store();
      for (let k = 0; k < 200; k++) store.append(k, given.bars);
      const kept = starts(store);
      return [store.numBars === kept.length, store.numBars <= MAX_BARS, kept[0] > 0,
        kept.at(-1) >= 199]
    """
    some = b"".join(bar(0, rank=rank) for rank in range(4)) * 250
    assert run_page(tmp_path, script, bars=some) == [True, True, True, True]


@needs_node
def test_every_action_that_is_drawn_has_a_colour(tmp_path: Path) -> None:
    script = "return [Object.keys(ACTION_COLOURS), [...SURROUNDS], LEGEND.map(([kind]) => kind)];"
    coloured, around, legend = run_page(tmp_path, script)  # type: ignore[misc]
    assert set(coloured) == {kind.name for kind in Kind if kind != HIDDEN}
    assert set(around) == STATE - {Kind.SNAPSHOT.name}
    assert set(legend) < set(coloured)


@needs_node
def test_axes_and_figures_are_readable(tmp_path: Path) -> None:
    script = """
      return [ticks(0, 50, 5), ticks(3, 3, 4), short(1234567), short(123456), short(0.02512),
        short(NaN), span(0.0000123), span(0.0148), span(0.9996), span(12.34),
        clock(0.25, 3).slice(-6), logTicks(0.04, 6, 8), logTicks(0.04, 6, 4)]
    """
    assert run_page(tmp_path, script) == [
        [0, 10, 20, 30, 40, 50], [3], "1.23M", "123k", "0.0251", "\N{EN DASH}",
        "12 µs", "14.8 ms", "1.00 s", "12.3 s", "00.250",
        [0.05, 0.1, 0.2, 0.5, 1, 2, 5], [0.1, 1],
    ]  # fmt: skip
