"""The version of an endless order, which is recorded with the fingerprint of the data.

1  Epoch e is Megatron's order of one epoch under ``seed + e``, so that a run with ``seed + 1``
   begins with the second epoch of ``seed``.
2  Epoch 0 is the same; the generator of each later one is seeded with the seed and the epoch
   together, so that no two pairs have the same order.

A new stream has the newest version. What names a fingerprint continues with the version in it; a
fingerprint without one was recorded before there were versions, and means 1.
"""

from __future__ import annotations

import re

from headway.common.errors import InputError

NEWEST = 2
_MARK = re.compile(r"(.*)-order(\d+)", re.DOTALL)


def version_of(fingerprint: str) -> int:
    """The version that ``fingerprint`` records; that of a new stream if it is "".

    Raises:
        InputError: a later version of Headway has recorded it.
    """
    found = _MARK.fullmatch(fingerprint)
    version = int(found[2]) if found else 1 if fingerprint else NEWEST
    if not 1 <= version <= NEWEST:
        raise InputError(
            f"fingerprint {fingerprint!r} names order {version}, this version of Headway knows 1 "
            f"to {NEWEST}",
            remedy="use the version of Headway that recorded it",
        )
    return version


def data_of(fingerprint: str) -> str:
    """The part of ``fingerprint`` that describes the data."""
    found = _MARK.fullmatch(fingerprint)
    return found[1] if found else fingerprint


def record(data: str, version: int) -> str:
    """The fingerprint of a stream that reads ``data`` in the order of ``version``.

    With "" for ``data`` it asks for the order alone: any data are accepted.
    """
    return data if data and version == 1 else f"{data}-order{version}"


def order_of_run(fingerprint: str, step: int) -> str:
    """Return what a stream names to have the order of a run, whatever its data are.

    The run has recorded ``fingerprint`` after ``step`` steps. A run that has recorded none by then
    has version 1.
    """
    return record("", version_of(fingerprint) if fingerprint or not step else 1)


def epoch_seed(version: int, seed: int, epoch: int) -> tuple[int, int]:
    """(seed, epoch) of the ``SampleOrder`` of an epoch."""
    return (seed, epoch) if version > 1 else ((seed + epoch) % 2**32, 0)
