"""The run console on a page: its figures as the page publishes them, its buttons as pressed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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

    def field(self, name: str) -> Locator:
        """The input of an argument."""
        return self.root.locator(f"input[data-field='{name}']")

    def line(self, key: str) -> str:
        """The line to copy: "cli" or "python"."""
        return self.root.locator(f"code[data-line='{key}']").inner_text()

    def copy(self, key: str) -> str:
        """Press its button; returns what the clipboard then holds."""
        self.root.locator(f"button[data-copies='{key}']").click()
        text: str = self.page.evaluate("() => navigator.clipboard.readText()")
        return text

    @property
    def answer(self) -> str:
        """What became of the newest command."""
        return self.root.locator("[role=status]").inner_text()

    def answer_to(self, act: Callable[[], object], limit_s: float = 60.0) -> str:
        """Do something that sends a command; returns the final answer to that command."""
        before = json.dumps(self.root.get_attribute("data-answered"))
        act()
        self.wait(f"d.answered !== {before}", limit_s)
        said = self.root.locator("[role=status]").filter(has_not_text=re.compile(r": \.\.\.$"))
        said.wait_for(timeout=limit_s * 1e3)
        return self.answer

    def press(self, name: str, limit_s: float = 60.0) -> None:
        """Press a button, twice where it asks, and wait until its operation was sent.

        Raises:
            AssertionError: it was refused.
        """
        button = self.button(name)
        button.hover()
        if self.asks(name):
            button.click()
        said = self.answer_to(button.click, limit_s)
        assert said == f"{name}: sent", said

    def asks(self, name: str) -> bool:
        """Whether a button has a question to be answered by a second press."""
        return self.button(name).get_attribute("data-asks") == "true"

    def choose_rank(self, rank: int) -> None:
        """Select a rank, unless it is selected already; -1 selects none."""
        if (before := int(self.get("selected"))) != rank:
            self.root.locator(".rank").nth(before if rank < 0 else rank).click()
            self.wait(f"Number(d.selected) === {rank}")

    def open_drills(self, is_open: bool = True) -> None:
        """Unfold or fold the drills."""
        folded = self.root.locator("details.drills")
        if (folded.get_attribute("open") is not None) != is_open:
            folded.locator("summary").click()

    def wait_pictures(self, number: int, limit_s: float = 60.0) -> None:
        """Wait until so many further pictures were shown."""
        self.wait(f"d.number >= {self.get('number') + number}", limit_s)

    def wait_text(self, name: str, text: str, limit_s: float = 30.0) -> None:
        """Wait until a button has exactly this text."""
        self.page.wait_for_function(
            "([node, text]) => node.textContent === text",
            arg=[self.button(name).element_handle(), text],
            timeout=limit_s * 1e3,
        )

    def show(self) -> None:
        """Scroll to the top of the console."""
        self.root.evaluate("(node) => node.scrollIntoView({ block: 'start' })")
