"""The live console of a run in a notebook: a pump thread, and the widget that it feeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.console.widgets.views import RunConsole
    from headway.console.widgets.watcher import RunWatcher

__all__ = ["RunConsole", "RunWatcher"]

__getattr__, __dir__ = lazy(__name__, watcher="RunWatcher", views="RunConsole")
