"""The Prometheus exporter of a service: own registry, loopback only, robust against clients."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.common.errors import InputError
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

BACKLOG = 128
REQUEST_LIMIT_S = 5.0  # a connection that sends no request by then is closed, and its thread ends


class Exporter:
    """``http://127.0.0.1:port/metrics`` in daemon threads; port 0 takes any free one.

    Raises:
        InputError: the port is in use.
    """

    def __init__(self, port: int, registry: CollectorRegistry) -> None:
        try:
            self._server, self._thread = start_http_server(
                port, addr="127.0.0.1", registry=registry
            )
        except (OSError, OverflowError) as error:
            raise InputError(
                f"cannot export metrics on port {port}: "
                f"{getattr(error, 'strerror', None) or error}",
                remedy="choose another metrics port, 0 takes any free one",
            ) from error
        # http.server queues 5 connections; a sixth would be delayed by a second
        self._server.socket.listen(BACKLOG)
        handler: Any = self._server.RequestHandlerClass
        self._server.RequestHandlerClass = type("Handler", (handler,), {"timeout": REQUEST_LIMIT_S})
        # socketserver would print a traceback for each broken connection, which is not our error
        self._server.handle_error = _ignore_error  # type: ignore[assignment, method-assign]
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def counts_collector(name: str, counts: Mapping[str, int], label: str) -> Collector:
    """Exports a dictionary of counters as ``name_total{label="key"}``, read at scrape time."""
    return _Counts(name, counts, label)


class _Counts(Collector):
    def __init__(self, name: str, counts: Mapping[str, int], label: str) -> None:
        self._name, self._counts, self._label = name, counts, label

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(
            self._name, f"{self._name} by {self._label}", labels=[self._label]
        )
        for key, count in dict(self._counts).items():
            family.add_metric([key], count)
        yield family


@dataclass(frozen=True)
class Metric:
    """One metric, read when it is scraped.

    Args:
        name: ends in its unit; a counter is exported as ``name_total``.
        text: its line of help.
        read: returns the value, or a value for each value of ``label``; None leaves it out.
        label: name of that label.
        is_counter: it only grows.
    """

    name: str
    text: str
    read: Callable[[], float | Mapping[str, float] | None]
    label: str = ""
    is_counter: bool = False

    def family(self) -> Family | None:
        """The metric as it stands now."""
        value = self.read()
        if value is None:
            return None
        make = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        family = make(self.name, self.text, labels=[self.label] if self.label else [])
        if isinstance(value, Mapping):
            for key, one in dict(value).items():
                family.add_metric([key], float(one))
        else:
            family.add_metric([], float(value))
        return family


class Metrics(Collector):
    """Exports metrics; they are read in the exporter's thread, so ``read`` must be quick."""

    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Family]:
        """The metrics that are known."""
        for metric in self._metrics:
            family = metric.family()
            if family is not None:
                yield family


def _ignore_error(_request: socket.socket | tuple[bytes, socket.socket], _address: Any) -> None:
    """A broken connection of a scraper."""
