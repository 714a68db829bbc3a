"""The live console of a run in a notebook: a pump thread, and the widget that it feeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.common.lazy import lazy

if TYPE_CHECKING:
    from headway.console.widgets.session import Session
    from headway.console.widgets.views import RunConsole

__all__ = ["RunConsole", "Session"]

__getattr__, __dir__ = lazy(__name__, session="Session", views="RunConsole")
