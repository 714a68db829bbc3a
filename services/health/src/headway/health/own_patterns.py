"""Patterns that a user wrote, in whose search an agent must not be lost.

Python's own ``re`` holds the interpreter during a search, and a pattern such as ``(a+)+b`` takes
years on a line of forty characters. ``regex`` releases it and ends a search that takes too long.
"""

from __future__ import annotations

import re
from typing import Any, Final

from headway.common.log import get_logger

LIMIT_S: Final = 0.1
"""Most CPU time for one line: a thousand times what an ordinary pattern takes on the longest."""
_OTHERS_ONLY: Final = re.compile(r"\{[^{}]*[a-z<=][^{}]*\}|\[\[:")
"""What ``regex`` understands differently: fuzzy matches and POSIX classes."""
_log = get_logger("rules")


def unfit(text: str) -> str:
    """Why a pattern of ``re`` cannot be searched with a limit of time; empty if it can."""
    import regex

    try:
        regex.compile(text)
    except (regex.error, OverflowError, RecursionError) as error:
        return str(error)
    if found := _OTHERS_ONLY.search(text):
        return f"{found[0]!r} would mean something else with a limit of time"
    return ""


class OwnPattern:
    """Searches lines like a pattern of ``re``, until it has once taken longer than ``LIMIT_S``."""

    def __init__(self, rule: str, text: str) -> None:
        import regex  # only an agent with own rules has it in memory

        self._pattern: Any = regex.compile(text, regex.IGNORECASE)
        self._rule, self._text = rule, text
        self.refused = ""
        """Why it is not searched for any more; empty while it is."""

    def search(self, line: str) -> Any:
        """The match, of the form that ``re`` has, or None."""
        pattern = self._pattern  # another thread may turn it off meanwhile
        if pattern is None:
            return None
        try:
            return pattern.search(line, timeout=LIMIT_S, concurrent=True)
        except TimeoutError:
            self._pattern = None
            self.refused = (
                f"rule {self._rule!r} is turned off: its pattern {self._text} took more than "
                f"{LIMIT_S:g} s of processor time on a line of {len(line)} characters; write it "
                "without nested repetition"
            )
            _log.error("custom rule disabled", reason=self.refused)
            return None
