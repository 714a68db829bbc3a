"""The notebook console as a user meets it: JupyterLab on loopback and a page in Chromium."""

from __future__ import annotations

from headway.testkit.browser.browser import Watch, missing, open_browser
from headway.testkit.browser.console import ConsolePage
from headway.testkit.browser.lab import Lab, Theme
from headway.testkit.browser.looks import contrasts, misplaced
from headway.testkit.browser.notebook import NotebookPage

__all__ = [
    "ConsolePage",
    "Lab",
    "NotebookPage",
    "Theme",
    "Watch",
    "contrasts",
    "misplaced",
    "missing",
    "open_browser",
]
