"""Reads samples in Prometheus' text format, such as those of DCGM's exporter.

Each line is parsed on its own by ``prometheus_client``, so that a damaged one costs only itself. A
gauge such as ``DCGM_FI_DEV_XID_ERRORS`` keeps the last value forever: it shows that there was an
error at some time, never that there is one now.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

MAX_LINE_CHARS: Final = 8000
_HOST_LABELS: Final = (
    "Hostname",
    "hostname",
    "host",
    "node",
    "nodename",
    "kubernetes_node",
    "instance",
)


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of one series."""

    name: str
    labels: Mapping[str, str]
    value: float
    """Never a NaN."""
    at_s: float | None
    """If the line has a time."""

    @property
    def host(self) -> str:
        """By its labels; empty without any of the usual ones."""
        found = next((self.labels[name] for name in _HOST_LABELS if self.labels.get(name)), "")
        host, colon, port = found.rpartition(":")
        return host if colon and port.isdigit() else found

    @property
    def gpu(self) -> int:
        """Index of the GPU by its labels, -1 without one."""
        text = self.labels.get("gpu", "")
        return int(text) if text.isdecimal() and len(text) < 5 else -1


def read_prometheus(lines: Iterable[str]) -> Iterator[MetricSample]:
    """The samples in the order of the file; lines that are none are skipped."""
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#") or len(text) > MAX_LINE_CHARS:
            continue
        yield from _samples(text)


def _samples(line: str) -> Iterator[MetricSample]:
    try:
        families = list(text_string_to_metric_families(line + "\n"))
    except (ValueError, IndexError, KeyError, OverflowError, AttributeError, TypeError):
        return  # the parser raises any of these on text that is not in the format
    for family in families:
        for sample in family.samples:
            if not math.isnan(sample.value):
                stamp = sample.timestamp
                at_s = None if stamp is None else float(stamp)
                yield MetricSample(sample.name, dict(sample.labels), float(sample.value), at_s)
