"""Tables and drawings: units, few digits, no colour that a theme could hide."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import polars as pl
import pytest
from headway.console.display.charts import MAX_POINTS, Bar, bars_in_rows, curves
from headway.console.display.formatting import count, digits, milliseconds, share
from headway.console.display.table import Column, Shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.999999e-05, "0.0000500"),
        (1.2e-9, "1.20e-09"),
        (0.0, "0"),
        (0.1 + 0.2, "0.300"),
        (12.3456, "12.3"),
        (1234.5, "1,234"),
        (-0.0012, "-0.00120"),
        (None, "-"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_digits(value: float | None, text: str) -> None:
    assert digits(value) == text


def test_other_figures() -> None:
    assert share(0.12345) == "12.3 %" and share(None) == share(math.nan) == "-"
    assert count(1234567) == "1,234,567" and count(None) == "-"
    assert milliseconds(0.0123) == "12.3" and milliseconds(1e-9) == "0"
    assert milliseconds(None) == milliseconds(math.nan) == "-"


TABLE = Shown(
    pl.DataFrame({"name": ["a<b", "c"], "s": [0.004, 0.002], "t": [0.001, None]}),
    "Times & more",
    [
        Column("name", "name"),
        Column("s", "s, ms", milliseconds, "shade"),
        Column("t", "t, ms", milliseconds, "shade"),
    ],
    "a note",
)


def test_a_table_is_text_and_html_with_the_same_cells() -> None:
    assert repr(TABLE).splitlines() == [
        "Times & more", "name  s, ms  t, ms", "a<b   4.00   1.00", "c     2.00   -", "a note",
    ]  # fmt: skip
    html = TABLE._repr_html_()
    assert "a&lt;b" in html and "Times &amp; more" in html and "a note" in html
    assert html.count("<tr>") == 3
    shades = [float(x) for x in re.findall(r"rgba\(76,139,245,([\d.]+)\)", html)]
    assert shades == [0.65, 0.16, 0.33], "of the highest of all shaded columns"


def test_a_table_without_rows_or_values_is_shown() -> None:
    empty = Shown(TABLE.frame.clear(), "empty", TABLE.columns)
    assert repr(empty) == "empty\n(nothing)" and "<tbody></tbody>" in empty._repr_html_()
    zeros = Shown(pl.DataFrame({"s": [0.0]}), "zeros", [Column("s", "s", share, "bar")])
    assert "gradient" not in zeros._repr_html_()


def svg_of(html: str) -> ET.Element:
    """The drawing, parsed: it is well-formed."""
    return ET.fromstring(re.search(r"<svg.*</svg>", html)[0])  # type: ignore[index]


def test_curves_are_inside_the_drawing_and_have_labels() -> None:
    points = [(float(k), math.nan if k == 3 else 9.0 - k * 1e-4) for k in range(5000)]
    drawn = curves("t", {"a & b": points}, x="step", y="nats", levels={"level": 6.5})
    svg = svg_of(drawn._repr_html_())
    assert {"step", "nats", "a & b", "level"} <= {e.text for e in svg.iter("text")}
    (line,) = svg.iter("polyline")
    shown = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
    assert MAX_POINTS // 2 < len(shown) <= MAX_POINTS
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    assert all(0 <= x <= width and 0 <= y <= height for x, y in shown)
    assert [x for x, _ in shown] == sorted(x for x, _ in shown)
    assert shown[0][1] < shown[-1][1], "a falling loss falls"
    assert repr(drawn) == "t (a drawing)"


@pytest.mark.parametrize("points", [[], [(0.0, 5.0)], [(0.0, math.nan)]])
def test_hardly_any_points_are_drawn_too(points: list[tuple[float, float]]) -> None:
    assert svg_of(curves("t", {"a": points}, x="x", y="y")._repr_html_()) is not None


def test_bars_lie_in_their_rows_and_on_the_axis() -> None:
    bars = [Bar(0, 0.0, 4.0, "work", "w 0"), Bar(1, 2.0, 4.0, "idle", "i")]
    drawn = bars_in_rows("t", ["one", "two"], bars, kinds=["work", "idle"], x="ms", note="n")
    svg = svg_of(drawn._repr_html_())
    first, second = [r for r in svg.iter("rect") if r.find("title") is not None]
    assert float(first.attrib["width"]) == pytest.approx(2 * float(second.attrib["width"]))
    assert float(second.attrib["y"]) > float(first.attrib["y"])
    assert _contrast(second, "#000000") > 2.5 and _contrast(second, "#ffffff") > 1.8, "visible"
    assert _contrast(second, "#000000") < _contrast(first, "#000000"), "and fainter"
    assert {"one", "two", "ms", "work", "idle"} <= {e.text for e in svg.iter("text")}
    assert svg_of(bars_in_rows("t", [], [], kinds=["a"], x="ms")._repr_html_()) is not None


def _contrast(rect: ET.Element, ground: str) -> float:
    """Contrast of a bar on a plain ground, 1 to 21, as WCAG 2.2 defines it."""
    opacity = float(rect.attrib.get("fill-opacity", 1))

    def luminance(colour: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    below, above = (
        [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        for text in (ground, rect.attrib["fill"])
    )
    mixed = [opacity * a + (1 - opacity) * b for a, b in zip(above, below, strict=True)]
    low, high = sorted((luminance(mixed), luminance(below)))
    return (high + 0.05) / (low + 0.05)


def test_no_fixed_colour_of_text_or_ground() -> None:
    drawn = curves("t", {"a": [(0.0, 1.0), (1.0, 2.0)]}, x="x", y="y")._repr_html_()
    for html in (drawn, TABLE._repr_html_()):
        assert not re.search(r"[^-]color:|background:#|fill=\"(?!currentColor|none|#)", html)
        assert "black" not in html and 'white"' not in html
    texts = list(svg_of(drawn).iter("text"))
    assert texts and {text.attrib["fill"] for text in texts} == {"currentColor"}
