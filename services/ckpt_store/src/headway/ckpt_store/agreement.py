"""Ends something on all ranks of a job when one of them fails, over a minimum of numbers.

The ranks need nothing but ``agree``, by which they also choose a checkpoint: the sentence of the
rank that failed travels through it a few bytes at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.common.errors import CorruptError, HeadwayError, InputError

Agree = Callable[[int], int]
"""The smallest of the numbers that all ranks pass; every rank calls it equally often."""

_NOBODY = 1 << 40
_PIECE_BYTES = 6
"""Bytes per call: such numbers are exact in a float64 too, if ``agree`` uses one."""
_LONGEST = 2000
_KINDS: dict[str, type[HeadwayError]] = {"C": CorruptError, "I": InputError, "H": HeadwayError}


def end_together(agree: Agree, rank: int, error: Exception | None) -> None:
    """Return if no rank has an ``error``; otherwise raise on every rank.

    A rank with an error raises its own. The others raise that of the lowest such rank, with its
    number.

    Raises:
        CorruptError, InputError, HeadwayError: what another rank raised; HeadwayError also stands
            for errors that are not of Headway, such as OSError.
    """
    failed = agree(_NOBODY if error is None else rank)
    if failed == _NOBODY:
        return
    text = _said(agree, _sentence(error) if error is not None and failed == rank else b"")
    if error is not None:
        raise error
    kind, message, remedy = text.decode(errors="replace").split("\0", 2)
    raise _KINDS.get(kind, HeadwayError)(f"rank {failed}: {message}", remedy=remedy)


def _sentence(error: Exception) -> bytes:
    kind = next(kind for kind, known in _KINDS.items() if isinstance(error, known) or kind == "H")
    if isinstance(error, HeadwayError):
        message, remedy = error.message, error.remedy
    else:
        message, remedy = f"{type(error).__name__}: {error}".removesuffix(": "), ""
    parts = (kind, message[:_LONGEST], remedy[:_LONGEST])
    return "\0".join(part.replace("\0", " ") for part in parts).encode(errors="replace")


def _said(agree: Agree, text: bytes) -> bytes:
    """The text of the one rank that passes any."""
    length = -agree(-len(text))
    received = b""
    for start in range(0, length, _PIECE_BYTES):
        piece = text[start : start + _PIECE_BYTES]
        number = agree(-int.from_bytes(piece.ljust(_PIECE_BYTES, b"\0"), "big"))
        received += (-number).to_bytes(_PIECE_BYTES, "big")
    return received[:length]
