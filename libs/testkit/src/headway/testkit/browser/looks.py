"""Can the console be read? Contrast and places of what is shown, as the browser computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.testkit.browser.console import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

LEAST_CONTRAST = 4.5
"""Text against its background, WCAG 2.2 level AA."""

CONTRAST = """(selector) => {
  const root = document.querySelector(selector), canvas = document.createElement("canvas");
  const probe = canvas.getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = probe.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map(
    (k) => top[k] * top[3] + below[k] * (1 - top[3])).concat(1);
  const behind = (node) => {
    const own = rgba(getComputedStyle(node).backgroundColor);
    return own[3] > 0.999 || !node.parentElement ? own : over(own, behind(node.parentElement));
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (text, below) => {
    const [one, other] = [light(over(text, below)), light(below)];
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  };
  const found = [];
  for (const node of root.querySelectorAll("*")) {
    const hasText = [...node.childNodes].some(
      (child) => child.nodeType === 3 && child.textContent.trim());
    if (!hasText && node.tagName !== "INPUT") continue;
    if (!node.checkVisibility() || node.closest(":disabled")) continue;
    const style = getComputedStyle(node), name = `${node.tagName} ${node.textContent.slice(0, 40)}`;
    found.push({ name, ratio: contrast(rgba(style.color), behind(node)) });
    if (node.tagName !== "INPUT") continue;
    const hint = getComputedStyle(node, "::placeholder").color;
    found.push({ name: "placeholder", ratio: contrast(rgba(hint), behind(node)) });
  }
  const painted = getComputedStyle(root);
  for (const name of ["--hw-ink", "--hw-soft"]) {
    const colour = rgba(painted.getPropertyValue(name).trim());
    found.push({ name, ratio: contrast(colour, behind(root)) });
  }
  return found;
}"""

PLACES = """(selector) => {
  const root = document.querySelector(selector), found = [];
  const place = (node, name) => {
    const { left, right, top, bottom } = node.getBoundingClientRect();
    const isInline = getComputedStyle(node).display === "inline";
    const cut = !isInline && node.scrollWidth > node.clientWidth + 1;
    found.push({ name, left, right, top, bottom, cut });
  };
  place(root, "root");
  for (const node of root.querySelectorAll("*")) {
    const isLeaf = !node.children.length && node.tagName !== "PROGRESS";
    if (!isLeaf || !node.checkVisibility() || node.closest(".tip")) continue;
    if (node.textContent.trim() || ["CANVAS", "INPUT"].includes(node.tagName)) {
      place(node, `${node.tagName} ${(node.textContent || node.ariaLabel || "").slice(0, 40)}`);
    }
  }
  return found;
}"""


def contrasts(page: Page) -> dict[str, float]:
    """What is written on the console -> its contrast, the lowest where a text occurs repeatedly.

    Disabled controls are left out, as WCAG does.
    """
    found: dict[str, float] = {}
    for row in page.evaluate(CONTRAST, ROOT):
        found[row["name"]] = min(row["ratio"], found.get(row["name"], row["ratio"]))
    return found


@dataclass(frozen=True)
class Place:
    """Where an element without children stands, CSS pixels."""

    name: str
    left: float
    right: float
    top: float
    bottom: float
    cut: bool
    """Whether its content is wider than itself."""

    def overlaps(self, other: Place) -> bool:
        """By more than a pixel both ways."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width > 1 and height > 1


def misplaced(page: Page) -> list[str]:
    """What is cut, outside the console or on top of something else; the console comes first."""
    rows: list[dict[str, Any]] = page.evaluate(PLACES, ROOT)
    root, *places = [Place(**row) for row in rows]
    width = page.viewport_size["width"] if page.viewport_size else 0
    found = ["the console is wider than the page"] if root.right > width else []
    for number, place in enumerate(places):
        if place.cut:
            found.append(f"cut: {place.name}")
        if place.left < root.left - 1 or place.right > root.right + 1:
            found.append(f"outside: {place.name}")
        found += [
            f"{place.name} and {other.name} overlap"
            for other in places[number + 1 :]
            if place.overlaps(other)
        ]
    return found
