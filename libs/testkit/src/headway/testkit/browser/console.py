"""The run console on a page: its figures as the page publishes them, its buttons as pressed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ROOT = ".headway-console"


class ConsolePage:
    """The console that ``page`` shows; figures come from the data attributes of its root."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.root = page.locator(ROOT).first

    def get(self, name: str) -> float:
        """The figure ``data-NAME``."""
        value = self.root.get_attribute(f"data-{name}")
        assert value is not None, f"the page does not publish {name}"
        return float(json.loads(value))

    def wait(self, condition: str, limit_s: float = 60.0) -> None:
        """Wait until a JavaScript expression over ``d``, the data attributes, is true."""
        self.page.wait_for_function(
            "([root, text]) => { const d = document.querySelector(root)?.dataset;"
            " return Boolean(d && new Function('d', `return ${text}`)(d)); }",
            arg=[ROOT, condition],
            timeout=limit_s * 1e3,
        )

    def button(self, name: str) -> Locator:
        """The button with that ``data-name``."""
        return self.root.locator(f"button[data-name='{name}']")

    def press(self, name: str, answer: str = "sent", limit_s: float = 30.0) -> str:
        """Press a button, twice where it asks, and wait for the answer; returns its text."""
        button = self.button(name)
        button.click()
        if "asks" in (button.get_attribute("class") or ""):
            button.click()
        said = self.root.locator("[role=status]")
        said.filter(has_text=f"{name}: {answer}").wait_for(timeout=limit_s * 1e3)
        return said.inner_text()

    def show(self) -> None:
        """Scroll to the top of the console."""
        self.root.evaluate("(node) => node.scrollIntoView({ block: 'start' })")
