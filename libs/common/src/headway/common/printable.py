"""Text of strangers, such as a rank's own output, made safe for a terminal."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except the tab (C0, C1), marks that change the direction of text or end a
line (Unicode Annex 9), and surrogates, which no encoding takes."""


def printable(text: str) -> str:
    """The text on one line, with escapes such as ``\\x1b`` for what would steer a terminal."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
