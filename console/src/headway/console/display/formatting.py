"""Figures as people read them: few digits, a unit, and "-" for what is not known."""

from __future__ import annotations

import math
import time

UNKNOWN = "-"


def count(value: float | None) -> str:
    """``1,234,567``."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """0.1234 as ``12.3 %``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.1%}".replace("%", " %")


def digits(value: float | None) -> str:
    """Three significant digits: ``0.0123``, ``1.23``, ``1,234``; an exponent below 1e-6."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}" if places <= 8 else f"{value:.2e}"


def milliseconds(seconds: float | None) -> str:
    """Seconds shown in ms, of which a thousandth is the least shown."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    return "0" if abs(seconds) < 0.5e-6 else digits(seconds * 1e3)


def clock(at_unix_s: float) -> str:
    """``14:03:09``, local time."""
    return time.strftime("%H:%M:%S", time.localtime(at_unix_s))


def text(value: object) -> str:
    """Anything else."""
    return UNKNOWN if value is None else str(value)
