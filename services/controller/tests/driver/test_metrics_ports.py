"""Ports of a run's metrics are laid out without overlap, and refused where they do not fit."""

from __future__ import annotations

import pytest
from headway.common.errors import ConfigError
from headway.controller.driver.run_metrics import Recoveries, targets
from headway.trainer.config import LaunchConfig, MetricsPorts


@pytest.mark.parametrize("nodes", [1, 3, 40])
def test_every_service_has_a_port_of_its_own_without_a_hole(nodes: int) -> None:
    ports = MetricsPorts(9400, nodes)
    assert [port for port, _, _ in ports] == list(range(9400, ports.last + 1))
    assert ports.last == 9400 + 1 + 4 * nodes
    for port, service, node in ports:
        assert ports.of(service, node or 0) == port


def test_spares_have_ports_and_zero_turns_them_off() -> None:
    ports = LaunchConfig(nodes=2, spares=1, metrics_port=9400).metrics_ports
    assert ports is not None and ports.nodes == 3
    assert LaunchConfig().metrics_ports is None


def test_ports_beyond_the_range_are_refused_with_the_highest_that_fits() -> None:
    with pytest.raises(ConfigError, match=r"up to 65536, above 65535; use 65530 or less"):
        LaunchConfig(metrics_port=65531)
    assert LaunchConfig(metrics_port=65530).metrics_port == 65530
    with pytest.raises(ConfigError, match=r"launch.metrics_port=80 is below 1024"):
        LaunchConfig(metrics_port=80)
    with pytest.raises(ConfigError, match="use fewer nodes, or 0"):
        MetricsPorts(9400, 20_000).check()


def test_a_sink_is_named_once() -> None:
    with pytest.raises(ConfigError, match="names a sink twice"):
        LaunchConfig(sinks=("wandb", "wandb"))


def test_driver_and_monitor_are_listed_under_the_node_that_leads() -> None:
    listed = targets("tiny", MetricsPorts(9400, 2), home=1)
    assert listed[1] == {
        "targets": ["127.0.0.1:9401"],
        "labels": {"run": "tiny", "node": "1", "service": "monitor"},
    }
    assert listed[2]["labels"] == {"run": "tiny", "node": "0", "service": "executor"}


@pytest.mark.parametrize(
    ("events", "number"),
    [
        ("driver_started generation stepping", 0),
        ("driver_started generation stepping fence generation stepping", 1),
        ("driver_started generation stepping fence generation fence generation stepping", 1),
        ("fence driver_started adopted generation stepping", 1),  # the ranks outlived the driver
        ("fence driver_started generation stepping", 0),  # everything had ended meanwhile
        ("fence run_over driver_started generation stepping", 0),
        ("fence generation stepping fence generation stepping", 2),
    ],
)
def test_a_recovery_lasts_from_a_fence_until_all_ranks_step(events: str, number: int) -> None:
    assert Recoveries(events.split()).number == number
