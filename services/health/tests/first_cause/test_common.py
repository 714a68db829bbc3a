"""A link that flaps costs its node; the same trouble on many nodes costs none."""

from __future__ import annotations

from pathlib import Path

import pytest
from headway.common.config import diff, load
from headway.common.errors import ConfigError
from headway.common.wire.messages.health import Verdict
from headway.health.client import response
from headway.health.config import HealthConfig
from headway.health.first_cause.domains import find_scope

from services.health.tests.first_cause.played import Played, flap, line, rows

SWITCHES = {"switch-a": (0, 1, 2, 3), "switch-b": (4, 5, 6, 7)}


def costs_a_node(verdicts: list[Verdict]) -> list[int]:
    return [one.node for one in verdicts if one.is_open and response(one) == "replace_node"]


@pytest.mark.parametrize("num_nodes", [2, 8])
def test_one_flap_is_noted_and_two_within_five_minutes_cost_the_node(num_nodes: int) -> None:
    played = Played(num_nodes, 1)
    played.find(1, flap(1))
    reported = played.run(5.0)
    assert [(one.kind, one.cause, response(one)) for one in reported] == [
        ("network_fault", "link_flap", "observe")
    ]
    played.run(90.0)
    played.find(1, flap(1))
    reported = played.run(5.0)
    assert costs_a_node(reported) == [1]
    (verdict,) = [one for one in reported if one.is_open]
    assert (verdict.kind, verdict.subject, verdict.name) == ("link_flapping", "nic", "mlx5_0/1")
    played.find(1, flap(1))
    assert played.run(5.0) == [], "a third one changes nothing"


def test_two_flaps_in_more_than_five_minutes_are_noted_twice() -> None:
    played = Played(2, 1)
    for _ in range(2):
        played.find(1, flap(1))
        played.run(301.0)
    assert costs_a_node(played.verdicts) == []
    assert {one.kind for one in played.verdicts} == {"network_fault"}


def test_links_that_flap_on_two_nodes_cost_neither() -> None:
    played = Played(8, 1)
    for node in (1, 5):
        played.find(node, flap(node))
    played.run(60.0)
    for node in (1, 5):
        played.find(node, flap(node))
    played.run(60.0)
    assert costs_a_node(played.verdicts) == []


@pytest.mark.parametrize("spread_s", [0.0, 0.5])
def test_links_below_one_switch_are_one_verdict_that_names_it(spread_s: float) -> None:
    played = Played(8, 1, SWITCHES)
    for node in (2, 0, 3, 1):
        played.find(node, flap(node, times=2))
        played.run(spread_s)
    played.run(10.0)
    (verdict,) = played.open()
    assert (verdict.kind, verdict.subject, verdict.name) == ("common_fault", "domain", "switch-a")
    assert (verdict.node, verdict.rank, verdict.cause) == (-1, -1, "network")
    assert costs_a_node(played.verdicts) == []
    assert "check switch-a" in verdict.remedy
    assert len(rows(verdict, "on_node")) == 4
    assert {one.id for one in played.verdicts} == {verdict.id}, "and no other was ever reported"
    played.run(70.0)
    assert played.open() == []


def test_without_domains_half_of_the_nodes_have_it_in_common_and_nobody_is_named() -> None:
    played = Played(8, 1)
    for node in (0, 2, 4, 6):
        played.find(node, flap(node, times=2))
    played.run(10.0)
    (verdict,) = played.open()
    assert (verdict.kind, verdict.name, verdict.node) == ("common_fault", "", -1)
    assert "nodes 0, 2, 4, 6" in rows(verdict, "finding")[0]
    assert {one.id for one in played.verdicts} == {verdict.id}


def test_fewer_than_half_are_verdicts_of_their_own() -> None:
    played = Played(8, 1)
    down = {node: line("nic_down", "is down", source="nic", subject="nic") for node in (0, 2, 4)}
    for node, found in down.items():
        played.find(node, found)
    played.run(10.0)
    assert sorted(one.node for one in played.open()) == [0, 2, 4]


def test_nodes_that_go_silent_together_are_one_verdict() -> None:
    played = Played(8, 1, SWITCHES)
    played.silent = {4, 5, 6, 7}
    played.run(20.0)
    (verdict,) = played.open()
    assert (verdict.kind, verdict.name, verdict.cause) == (
        "common_fault", "switch-b", "machine_fault",
    )  # fmt: skip
    played.silent = set()
    played.run(10.0)
    assert played.open() == []


def test_one_peer_that_the_others_do_not_reach_well_is_named() -> None:
    played = Played(6, 1)
    for node in (0, 1, 2, 4):
        text = "10.0.0.9 lost 4 % of the segments"
        played.find(node, line("fabric_loss", text, source="net", subject="peer", name="10.0.0.9"))
    played.run(10.0)
    (verdict,) = played.open()
    assert (verdict.subject, verdict.name) == ("peer", "10.0.0.9")
    assert response(verdict) == "observe"


@pytest.mark.parametrize(
    ("concerned", "num_nodes", "name"),
    [
        ({0, 1, 2}, 8, "switch-a"),
        ({0, 1, 2, 3, 4}, 8, "switch-a"),
        ({0, 1}, 8, None),
        ({0, 1, 4, 5}, 8, ""),
        (set(range(8)), 8, ""),
        ({0, 1, 2}, 4, "switch-a"),
        ({5}, 8, None),
    ],
)
def test_the_narrowest_scope_is_named(
    concerned: set[int], num_nodes: int, name: str | None
) -> None:
    scope = find_scope(concerned, {}, num_nodes, SWITCHES)
    assert (scope.name if scope else None) == name


def test_domains_are_read_from_a_file_and_pass_through_a_command_line(tmp_path: Path) -> None:
    file = tmp_path / "health.toml"
    file.write_text("[domains]\nswitch-a = [0, 1, 2, 3]\nrack_1 = [0, 4]\n")
    config = load(HealthConfig, [file])
    assert config.domains == {"switch-a": (0, 1, 2, 3), "rack_1": (0, 4)}
    changed = diff(HealthConfig(), config)
    options = [f"{key}={value}" for key, (_, value) in changed.items()]
    assert load(HealthConfig, overrides=options) == config
    with pytest.raises(ConfigError, match=r"domains.switch-a\[1\] = 'x' is of type str"):
        load(HealthConfig, overrides=["domains={switch-a=[0, 'x']}"])
    with pytest.raises(ConfigError, match="of type list") as refused:
        load(HealthConfig, overrides=["domains=[0, 1]"])
    assert "expected a table" in str(refused.value.remedy)


@pytest.mark.parametrize(
    ("domains", "error"),
    [
        ({"a b": (0, 1)}, "has the name 'a b'"),
        ({"a": (0,)}, "a = \\[0\\] has fewer than two nodes"),
        ({"a": (0, -1)}, "a has node -1"),
        ({"a": (0, 1, 1)}, "a has node 1 twice"),
    ],
)
def test_a_domain_that_cannot_be_is_refused(
    domains: dict[str, tuple[int, ...]], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        HealthConfig(domains=domains)
