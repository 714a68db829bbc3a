"""A headless Chromium that records every request off this machine and every error it logs."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
HERE = re.compile(r"(https?|wss?)://(127\.0\.0\.1|localhost)[:/]|(data|blob|about|chrome):")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--no-first-run", "--force-color-profile=srgb",
)  # fmt: skip
WIDTH, HEIGHT = 1280, 900
KNOWN_ERRORS: dict[str, str] = {}
"""Part of an error that JupyterLab itself logs -> why it is not ours."""


def missing() -> str:
    """What keeps the browser from being used here, "" if nothing does."""
    if find_spec("playwright") is None:
        return "no playwright; `make setup-test` installs it"
    if not _chromium():
        return f"none of {', '.join(NAMES)} is on the PATH (Debian: apt-get install chromium)"
    return ""


def _chromium() -> str:
    return next((path for name in NAMES if (path := shutil.which(name))), "")


@dataclass
class Watch:
    """What a page did that the console must never cause."""

    requests: list[str] = field(default_factory=list)
    """Addresses off this machine that were asked for."""
    errors: list[str] = field(default_factory=list)
    """Errors on the browser's console and uncaught exceptions, but ``KNOWN_ERRORS``."""

    def follow(self, page: Page) -> None:
        """Record what ``page`` does from now on."""
        page.on("request", self._on_request)
        page.on("console", self._on_message)
        page.on("pageerror", lambda error: self._on_error(f"uncaught: {error}"))

    def _on_request(self, request: Request) -> None:
        if not HERE.match(request.url):
            self.requests.append(request.url[:200])

    def _on_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._on_error(f"{message.text} ({message.location.get('url', '')})")

    def _on_error(self, text: str) -> None:
        if not any(known in text for known in KNOWN_ERRORS):
            self.errors.append(text[:500])


@contextlib.contextmanager
def open_browser(profile: Path, *, width: int = WIDTH, height: int = HEIGHT) -> Iterator[Page]:
    """One page of a fresh profile; never downloads a browser.

    Args:
        profile: an empty folder for the browser's files.
        width: of the page, CSS pixels.
        height: of the page, CSS pixels.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=_chromium(),
            args=list(FLAGS),
            headless=True,
            viewport={"width": width, "height": height},
            permissions=["clipboard-read", "clipboard-write"],
        )
        try:
            yield context.pages[0]
        finally:
            context.close()
